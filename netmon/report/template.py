# SPDX-License-Identifier: Apache-2.0
"""The page."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; } h3 { margin: 2rem 0 .2rem; }
nav ol { columns: 2; } nav li { break-inside: avoid; } a { color: #0072B2; }
img { max-width: 100%; height: auto; }
figure { margin: .5rem 0 0; } figcaption, .basis { color: #555; font-size: .82rem; }
.gap { border-left: 4px solid #E69F00; padding: .3rem .8rem; background: #fdf6e7; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #e5e5e5; white-space: nowrap; }
code { background: #f3f3f3; padding: 0 .25rem; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="basis">{{ basis }}<br>made by <code>{{ command }}</code>, netmon {{ version }}, {{ made }}</p>
<nav><ol>
<li><a href="#findings">Findings</a></li>
{% for chapter in chapters %}<li><a href="#{{ chapter.anchor }}">{{ chapter.title }}</a><ul>
{% for item in chapter.items %}<li><a href="#{{ item.name }}">{{ item.title }}</a>
{%- if item.gap %} (not shown){% endif %}</li>
{% endfor %}</ul></li>
{% endfor %}<li><a href="#missing">What is missing and why</a></li>
</ol></nav>
<h2 id="findings">Findings</h2>
<ul>{% for sentence in findings %}<li>{{ sentence }}</li>
{% endfor %}</ul>
{% for chapter in chapters %}<h2 id="{{ chapter.anchor }}">{{ chapter.title }}</h2>
{% for item in chapter.items %}<section id="{{ item.name }}">
<h3>{{ item.title }}</h3>
<p>{{ item.text }}{% if item.follows %} <span class="basis">After: {{ item.follows }}.</span>{% endif %}</p>
{% if item.gap %}<p class="gap">Not shown: {{ item.gap }}.</p>{% endif %}
{% if item.image %}<figure><img src="data:image/png;base64,{{ item.image }}" alt="{{ item.title }}">
<figcaption>{{ item.basis }}</figcaption></figure>{% endif %}
{% if item.html %}<div class="table">{{ item.html | safe }}</div>{% endif %}
{% if item.files %}<p class="basis">Tables:
{%- for file in item.files %} <a href="{{ file }}">{{ file }}</a>{{ "," if not loop.last }}{% endfor %}</p>{% endif %}
</section>
{% endfor %}{% endfor %}
<h2 id="missing">What is missing and why</h2>
{% if missing %}<ul>{% for sentence in missing %}<li>{{ sentence }}</li>
{% endfor %}</ul>{% else %}<p>Nothing: every table could be read, and every exhibit is shown.</p>{% endif %}
</body>
</html>
"""
