# SPDX-License-Identifier: Apache-2.0
"""`netmon bench`: netmon measured on this machine."""

import argparse
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from netmon.bench.specs import SPECS, Progress, Spec
from netmon.options import declare, read_options

log = logging.getLogger(__name__)

HELP = "measure netmon itself (on this machine: needs root)"
EXAMPLES = """\
  netmon bench kernel              ns per packet of the BPF programs, and of the least such a program can do
  netmon bench drain --json        records per second of the agent's drain
  netmon bench overhead            throughput of a stream watched by nobody, netmon or tcpdump
  netmon bench overhead --rounds 15 --seconds 5
  netmon bench overhead --evidence --rounds 5 --seconds 30
  netmon bench flows               what a flood of new flows costs the agent and the collector
  netmon bench hook                what marking a step costs the training (needs no root)
  netmon bench calls               what each collective costs a rank that is watched, and the agent
  netmon bench collectives         what telling NCCL's transfers costs NCCL
  netmon bench clock               how well injected clock offsets and skews are recovered
  netmon bench inference           jobs and iterations found in recorded traffic, compared with the trainers' log
  netmon bench pipeline --hosts 64  cost of the collector under simulated agents, and whether its dataset is right
  netmon bench verdict --lab 100    causes brought about in the lab, and what `netmon why` says of each
  netmon bench hang                training that is made to hang, and what is reported of it (a minute per run)
  netmon bench hang --runs 30 --kinds stop,kill,host --trainer fsdp --trainer pipeline --json
  netmon bench hang --undisturbed 8  hours of training in which nothing hangs: nothing should be reported
  netmon bench pipeline --bus nats --collectors 2 --hosts 64 --jobs 8 --rows 1000 --seconds 60
                                   two workers compared with one: the same batches, the same CPU for each worker
  netmon bench inference out/one   the same on what `netmon lab run --data out/one` recorded
"""

_PROGRESS_EVERY_S = 10.0  # of progress lines


def arguments(parser: argparse.ArgumentParser) -> None:
    whats = parser.add_subparsers(required=True, metavar="WHAT")
    for spec in SPECS:
        what = whats.add_parser(spec.name, help=spec.text, description=spec.text)
        declare(what, spec)
        what.add_argument("--json", action="store_true", help="one JSON document on standard output")
        what.set_defaults(spec=spec)


def run(args: argparse.Namespace) -> int:
    """Measure, then print. Raises UsageError, and UnsupportedError without the root that it needs."""
    from netmon.bench.result import print_result
    from netmon.kernel.privilege import require_capabilities

    spec: Spec = read_options(args.spec, args)
    if spec.root:
        require_capabilities()
    module, function = spec.measured_by.split(":")
    measure = getattr(import_module(f"netmon.bench.{module}"), function)
    with _shown(spec) as progress:
        result = measure(spec, progress)
    print_result(result, args.json)
    return 0


@contextmanager
def _shown(spec: Spec) -> Iterator[Progress]:
    """A function that shows progress: a bar on standard error, or lines of text where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    begun, due = time.monotonic(), 0.0

    def show(done: float, of: float, text: str = "") -> None:
        nonlocal due
        shown = f"bench {spec.name}, {text or f'{of:g} rounds'}"
        bar.update(task, completed=done, total=of, description=shown)
        if bar.disable and time.monotonic() >= (due or begun + (0 if text else _PROGRESS_EVERY_S)):
            due = time.monotonic() + _PROGRESS_EVERY_S
            log.info("bench %s: %s", spec.name, text or f"{done:.1f} of {of:g} rounds")

    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"bench {spec.name}", total=None)
        yield show
