# SPDX-License-Identifier: Apache-2.0
"""The documentation: every command in it is one that the parser takes, every page and figure in it is there.

Those below a `<!-- run -->` are run, page by page, by `make test-long` (root).
"""

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmon.cli import COMMANDS, make_parser

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDE.rglob("*.md")])
MADE = {"reference/command-line.md", "reference/dataset.md"}
_FENCE = re.compile(r"(<!-- run -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONFIGURED = {"agent": ["--interface", "x"], "collector": ["--data", "x"]}
_INLINE = re.compile(r"`([^`]+)`", re.DOTALL)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def shell_lines(page: Path, marked: bool = False) -> Iterator[str]:
    """Commands of a page; marked: only those that can be run as they stand."""
    for run, language, text in _FENCE.findall(page.read_text()):
        if language == "sh" and (run or not marked):
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


@pytest.mark.long
@pytest.mark.kernel
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", [page for page in PAGES if any(shell_lines(page, marked=True))], ids=str)
def test_marked_commands_run(page, tmp_path):
    """One after the other, as a reader would, in a folder of their own."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    for line in shell_lines(page, marked=True):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip() or "--out" in line
