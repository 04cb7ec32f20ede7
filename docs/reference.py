# SPDX-License-Identifier: Apache-2.0
"""The reference pages, made from the code: the command line from its parsers, the dataset from its schema."""

import argparse
import re
from collections.abc import Iterator

PAGES = ("reference/command-line.md", "reference/dataset.md")
_WIDE = 10_000


def on_files(files, config):
    """For MkDocs: the pages that no file holds."""
    from mkdocs.structure.files import File

    for name, page in zip(PAGES, (command_line(), dataset()), strict=True):
        files.append(File.generated(config, name, content=page))
    return files


def on_page_markdown(markdown, page, config, files):
    """The table of rooms says how many lines each has, to a hundred."""
    from pathlib import Path

    if page.file.src_uri != "how-it-works.md":
        return markdown
    root = Path(config.config_file_path).parents[1]

    def with_lines(row: re.Match) -> str:
        if row["place"] is None:
            return f"{row[0]} {'Lines of Python' if row['name'] else '---:'} |"
        place = row["place"] if row["place"].endswith(".py") else f"{row['place']}*.py"
        lines = sum(path.read_text().count("\n") for path in root.glob(place) if "pb2" not in path.name)
        return f"{row[0]} {f'{round(lines, -2):,}' if lines else ''} |"

    before, heading, rooms = markdown.partition("## Rooms\n")
    row = r"^\| (?:(?P<name>Room)|---|`(?P<place>[\w/*.]+)`) \|.*\|$"
    return before + heading + re.sub(row, with_lines, rooms, flags=re.MULTILINE)


def on_post_template(output_content, template_name, config):
    """The page for what is not there needs no search."""
    return re.sub(r'<script src="https://unpkg[^>]*></script>', "", output_content)


def on_post_page(output, page, config):
    """The theme would fetch from elsewhere what its search takes to run from the disk: it is ours."""
    from mkdocs.utils import get_relative_url

    return output.replace("https://unpkg.com/iframe-worker/shim", get_relative_url("search-from-disk.js", page.url))


def command_line() -> str:
    """Every command with its options and examples, as Markdown."""
    from netmon.cli import make_parser

    _, commands = make_parser()
    parts = [
        "# Command line",
        "Durations are numbers with a unit (`10us`, `1.5s`), as are rates (`1gbit`) and sizes (`1GB`). Times are "
        "ISO 8601, UTC unless they say otherwise. The exit status is 0 only when the work was done. An error is one "
        "line. `--json` prints one JSON document and nothing else. What stands in parentheses is the default.",
    ]
    for name, parser in commands.items():
        parts += _command(f"netmon {name}", parser, 2)
    return "\n\n".join(parts) + "\n"


def _command(name: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    if parser.description:
        yield _escaped(parser.description.strip())
    subcommands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not subcommands:
        yield f"```\n{_usage(parser)}\n```"
        for group in parser._action_groups:
            yield from _group(group)
    if parser.epilog:
        yield f"```\n{parser.epilog.strip()}\n```"
    for action in subcommands:
        said = {choice.dest: choice.help for choice in action._choices_actions}
        for word, child in action.choices.items():
            child.description = child.description or said[word]
            yield from _command(f"{name} {word}", child, level + 1)


def _usage(parser: argparse.ArgumentParser) -> str:
    return re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()


def _group(group: argparse._ArgumentGroup) -> Iterator[str]:
    rows = [_row(action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
    if not rows:
        return
    if group.title not in ("options", "positional arguments"):
        yield f"**{_escaped(str(group.title))}**"
    yield "\n".join(["| | |", "| --- | --- |", *rows])


def _row(action: argparse.Action) -> str:
    shown = argparse.HelpFormatter("", width=_WIDE)
    values = shown._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    name = " ".join(filter(None, (", ".join(action.option_strings), values)))
    text = shown._expand_help(action) if action.help else ""
    needed = " (required)" if action.required and action.option_strings else ""
    return f"| `{name}` | {_escaped(text)}{needed} |"


def _escaped(text: str) -> str:
    """As text, but for what stands between backquotes: neither markup nor the end of a cell."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([|*_<>\[\]#])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def dataset() -> str:
    """Every table with its columns, as Markdown."""
    from collector.dataset.meanings import TABLES, meaning
    from collector.dataset.tables import DATASET_VERSION, SCHEMAS

    parts = [
        "# Dataset",
        f"Schema version {DATASET_VERSION}: `DIR/<table>/date=YYYY-MM-DD/hour=HH/part-….parquet`, UTC. Times are ns of "
        "the UTC epoch. Words that are not known are empty, ranks and iterations −1, other figures null.",
    ]
    for table, schema in SCHEMAS.items():
        rows = [
            f"| `{field.name}` | {_kind(field.type)} | {_escaped(meaning(table, field.name))} |" for field in schema
        ]
        parts += [
            f"## {table}",
            _escaped(TABLES[table]),
            "\n".join(["| Column | Type | |", "| --- | --- | --- |", *rows]),
        ]
    return "\n\n".join(parts) + "\n"


def _kind(kind) -> str:
    return "string" if str(kind).startswith("dictionary") else str(kind)
