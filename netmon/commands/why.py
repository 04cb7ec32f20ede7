# SPDX-License-Identifier: Apache-2.0
"""`netmon why`: why iterations were slow, with the arithmetic."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import UsageError

if TYPE_CHECKING:
    from netmon.views import Verdict

HELP = "why iterations were slow: whose bytes, which rank or none of the network's doing, and how much of the time"
EXAMPLES = """\
  netmon why --data out
  netmon why training --iteration 812 --data /var/lib/netmon
  netmon why --data out --json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="only this job (all)")
    parser.add_argument("--iteration", type=int, metavar="K", help="this iteration, whether it stands out or not")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the dataset's directory")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the verdicts."""
    if args.data is None:
        raise UsageError("cannot tell why: give the dataset's --data")
    from netmon.report.judging import verdicts

    found = verdicts(args.data, args.job, args.iteration)
    if args.json:
        print(json.dumps({"verdicts": [document(one) for one in found]}, indent=1))
    else:
        _print(found)
    return 0


def document(verdict: "Verdict") -> dict[str, object]:
    """The verdict as JSON has it: the columns of the table `verdicts`."""
    from netmon.dl.verdict.words import columns

    return columns(verdict)


def _print(found: "Iterable[Verdict]") -> None:
    from netmon.dl.verdict.words import arithmetic, sentence

    told_any = False
    for verdict in found:
        told_any = True
        print(sentence(verdict))
        for line in arithmetic(verdict):
            print(f"  {line}")
    if not told_any:
        print("no iteration stands out: none took 1.2 × its job's usual time, or there are fewer than five to compare")
