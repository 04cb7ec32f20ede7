# SPDX-License-Identifier: Apache-2.0
"""The documentation: every command in it is one that the parser takes, every page and figure in it is there.

`make test-long` runs them, page by page (root): those below `<!-- run -->` on a machine of namespaces (documented.py),
those below `<!-- run: checkout -->` in a copy of this checkout; `<!-- run by FILE -->` names what else runs them.
"""

import argparse
import ast
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented import run_page

from netmon.cli import COMMANDS, make_parser

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDE.rglob("*.md")])
MADE = {"reference/command-line.md", "reference/dataset.md"}
_FENCE = re.compile(r"(?:^<!-- (run[^\n]*) -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_RUN = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
_CONFIGURED = {"agent": ["--interface", "x"], "collector": ["--data", "x"]}
_INLINE = re.compile(r"`([^`]+)`", re.DOTALL)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def shell_lines(page: Path, marked: str = "") -> Iterator[str]:
    """Commands of a page; marked: only those that are run so."""
    for run, language, text in _FENCE.findall(page.read_text()):
        if language == "sh" and (run == marked or not marked):
            yield from (line for line in text.replace("\\\n", " ").splitlines() if line.strip())


def refused(parser: argparse.ArgumentParser, line: str) -> bool:
    """Whether the parser takes one of the line's commands not; what a --config holds is not asked for."""
    for words in netmon_commands(line):
        try:
            parser.parse_args(
                [*words, *_CONFIGURED.get(words[0], []), "--config", "x"] if "--config" in words else words
            )
        except SystemExit as end:
            if end.code:
                return True
    return False


def netmon_commands(line: str) -> Iterator[list[str]]:
    """The arguments of each netmon in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            words = words[1:] if words[:1] == ["sudo"] else words
            if words and Path(words[0]).name == "netmon":
                yield words[1:]
            words = []
        else:
            words.append(word)


@pytest.fixture(scope="module")
def parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    return make_parser()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_command_is_one(page, parser, capsys):
    wrong = []
    for line in shell_lines(page):
        if refused(parser[0], line):
            wrong.append(f"{line}: {capsys.readouterr().err.splitlines()[-1]}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_what_the_text_names_is_there(page, parser):
    """Commands, options, make targets and files between backquotes."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = _FENCE.sub("", page.read_text())
    wrong = []
    for quoted in (" ".join(one.split()) for one in _INLINE.findall(text)):
        words = quoted.split()
        if words[0] == "netmon" and words[1:] and not unknown(words[1:], parser[1]):
            continue
        if words[0] == "make" and words[1:2] and words[1] in targets:
            continue
        named = re.fullmatch(r"(tests|netmon|collector|docs|systemd|bpf)/[\w./-]*", quoted)
        if (words[0] in ("netmon", "make") and words[1:]) or (named and not (ROOT / quoted).exists()):
            wrong.append(quoted)
    assert wrong == []


def unknown(words: list[str], commands: dict[str, argparse.ArgumentParser]) -> list[str]:
    """Of the words of a command that may be incomplete, those that are no command, subcommand or option."""
    if words[0].startswith("-"):
        return []
    if words[0] not in commands:
        return words[:1]
    own = commands[words[0]]
    for word in words[1:]:
        chosen = next((one for one in own._actions if isinstance(one, argparse._SubParsersAction)), None)
        if chosen and word in chosen.choices:
            own = chosen.choices[word]
        elif word.startswith("--") and word not in own._option_string_actions:
            return [word]
    return []


def anchors(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in found}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_link_leads_somewhere(page):
    wrong = []
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        made = to.is_relative_to(GUIDE) and str(to.relative_to(GUIDE)) in MADE
        if not made and not (to.exists() and (not anchor or anchor in anchors(to))):
            wrong.append(target)
    assert wrong == []


def test_every_room_is_described():
    text = (GUIDE / "how-it-works.md").read_text()
    rooms = [path.parent for top in ("netmon", "collector") for path in sorted((ROOT / top).glob("*/__init__.py"))]
    assert [str(room.relative_to(ROOT)) for room in rooms if f"`{room.relative_to(ROOT)}/`" not in text] == []


def test_readme_is_one_screen():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 50


def test_the_reference_has_every_command_and_every_column():
    reference = _reference()
    assert set(reference.PAGES) == MADE
    text = reference.command_line()
    for name in COMMANDS:
        assert f"## netmon {name}\n" in text
    assert "--stream-bucket TIME" in text
    assert "| `peak_bytes` | int64 | wire bytes of the largest" in reference.dataset()


def _reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_of_help_is_a_command(parser):
    wrong = []
    for name, command in parser[1].items():
        for line in command.epilog.replace("\\\n", " ").splitlines():
            if not line.startswith("  netmon "):
                continue
            if refused(parser[0], re.split(r"\s{2,}(?![\s-])|\s#\s", line.strip())[0]):
                wrong.append(f"{name}: {line}")
    assert wrong == []


def test_every_command_is_run_somewhere():
    wrong = []
    for page in _RUN:
        for run, language, text in _FENCE.findall(page.read_text()):
            by = ROOT / run.removeprefix("run by ")
            if language == "sh" and run not in ("run", "run: checkout") and not (run and by.is_file()):
                wrong.append(f"{page.name}: {text.splitlines()[0]}")
    assert wrong == []


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """Datasets that pages use which do not make them."""
    folder = tmp_path_factory.mktemp("documented")
    run_page(["netmon lab demo --data out/demo"], folder)
    return folder / "out/demo"


@pytest.mark.long
@pytest.mark.kernel
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", [page for page in _RUN if any(shell_lines(page, "run"))], ids=lambda page: page.stem)
def test_commands_run(page, tmp_path, demo):
    """One after the other, as a reader would, in a folder of their own."""
    lines = list(shell_lines(page, "run"))
    if not any("--data out/demo" in line and "lab" in line for line in lines):
        shutil.copytree(demo, tmp_path / "out/demo")
    if any("dump.pcap" in line for line in lines):
        common = "netmon export --data out/demo --format pcap --host h0 --iterations"
        lines = [f"{common} 10:12 --out dump.pcap0", f"{common} 12:14 --out dump.pcap1", *lines]
    run_page(lines, tmp_path)


@pytest.mark.long
@pytest.mark.kernel
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [page for page in _RUN if any(shell_lines(page, "run: checkout"))], ids=lambda page: page.stem
)
def test_commands_run_in_a_checkout(page, tmp_path):
    """With this checkout's .venv, as old as it is there."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["cpio", "-0pdm", "--quiet", str(tmp_path)], cwd=ROOT, input=files, check=True)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    for line in shell_lines(page, "run: checkout"):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip()


def packages() -> str:
    """A row for each, of its docstring."""
    rows = []
    for path in sorted([*(ROOT / "netmon").rglob("__init__.py"), *(ROOT / "collector").rglob("__init__.py")]):
        name = str(path.parent.relative_to(ROOT))
        if name not in ("netmon", "collector"):
            says = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
            rows.append(f"| `{name}/` | {says} |\n")
    return "".join(rows)


def test_the_rooms_are_those_that_there_are():
    page = GUIDE / "how-it-works.md"
    before, shown = re.split(r"^(?=\| `collector/\w)", page.read_text(), maxsplit=1, flags=re.MULTILINE)
    if os.environ.get("NETMON_WRITE_FRAMES"):
        page.write_text(before + packages())
    assert page.read_text() == before + packages(), shown


def test_the_walks_name_what_there_is():
    text = (GUIDE / "how-it-works.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:netmon|collector)[\w.]*):([\w.]+)`", text)
    assert len(named) > 50
    for module, name in named:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
