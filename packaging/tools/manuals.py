# SPDX-License-Identifier: Apache-2.0
"""`python packaging/tools/manuals.py DIR`: man pages and shell completions, from the declarations behind `--help`."""

import argparse
import gzip
import re
import sys
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from netmon.cli import make_parser
from netmon.version import __version__

COMPLETIONS = {
    "bash": "bash-completion/completions/netmon",
    "zsh": "zsh/site-functions/_netmon",
    "tcsh": "netmon/netmon.tcsh",
}


def main() -> int:
    """Writes DIR/man/man1/*.1.gz and the completions of each shell where the shell looks for them below share/."""
    share = Path(sys.argv[1])
    parser, commands = make_parser()
    pages = {"netmon": parser} | {f"netmon-{name}": command for name, command in commands.items()}
    for name, page in pages.items():
        write(share / "man/man1" / f"{name}.1.gz", gzip.compress(manual(name, page, pages).encode(), mtime=0))
    for shell, place in COMPLETIONS.items():
        write(share / place, shtab.complete(completed(parser), shell).encode())
    return 0


def manual(name: str, parser: argparse.ArgumentParser, pages: dict[str, argparse.ArgumentParser]) -> str:
    """One page, in roff."""
    examples = (parser.epilog or "").partition("\n")[2]
    parser.epilog = None
    page = Manpage(parser)
    page.prog, page.source, page.manual, page.date = name, f"netmon {__version__}", "netmon", ""
    page.description = parser.description
    if examples:
        page.add_section("examples", "=", f".nf\n{escaped(examples)}\n.fi")
    page.add_section("see also", "=", ", ".join(f"\\fB{escaped(other)}\\fR(1)" for other in pages if other != name))
    return re.sub(r"^(?=[.'](?!(TH|SH|SS|TP|PP|RS|RE|B|nf|fi)\b))", r"\\&", str(page), flags=re.M)


def escaped(text: str) -> str:
    """As it stands, in roff."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("\n.", "\n\\&.").replace("\n'", "\n\\&'")


def completed(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same, with files completed where a path is meant."""
    for action in every_action(parser):
        if action.type is Path or action.metavar in ("FILE", "PATH", "DIR"):
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
    return parser


def every_action(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Its own and its commands'."""
    own = list(parser._actions)
    below = [
        action
        for each in own
        if isinstance(each, argparse._SubParsersAction)
        for command in each.choices.values()
        for action in every_action(command)
    ]
    return own + below


def write(path: Path, content: bytes) -> None:
    """Makes its folder, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
