# SPDX-License-Identifier: Apache-2.0
"""`netmon trace`: the dataset as a trace for Perfetto, with profilers' traces on the same clock."""

import argparse
import contextlib
import gzip
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from netmon.errors import DataError, UsageError
from netmon.options import FILE, TIME, declare, read_options
from netmon.own_module import require
from netmon.units import format_bytes, format_duration, parse_duration, parse_time
from netmon.wire.security import Security

if TYPE_CHECKING:
    from netmon.trace.merge import Progress
    from netmon.trace.writer import TraceWriter

HELP = "write a trace for Perfetto: iterations, flows, rates and verdicts of a dataset, and profilers' traces with them"
EXAMPLES = """\
  netmon trace out --out run.pftrace                       open it at https://ui.perfetto.dev
  netmon trace out --job training --iterations 800:820 --out slow.pftrace
  netmon trace out --hang --out hang.pftrace               what preceded the last hang of a job
  netmon trace out --since 2026-01-31T09:00 --until 2026-01-31T09:01 --host node17 node18 --out minute.json.gz
  netmon trace localhost:9400 --last 20s --job training --out now.pftrace   a live collector
  netmon trace out --merge rank*.pt.trace.json.gz --out all-ranks.pftrace
"""
_NEEDS = ("ijson", "perfetto")
_PERFETTO, _CHROME = (".pftrace", ".perfetto-trace"), (".json", ".json.gz")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", metavar="DATA|ADDR", help="the dataset's directory; or a live collector's HOST:PORT or unix:PATH"
    )
    parser.add_argument("--out", required=True, **FILE, help="ends in .pftrace (Perfetto), .json or .json.gz (Chrome)")
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        default=[],
        metavar="TRACE",
        help="profilers' traces of ranks, put on the same clock",
    )
    parser.add_argument("--job", metavar="J", help="only this job and its hosts")
    parser.add_argument(
        "--iterations", metavar="A:B", help="only the time of iterations A to B-1; either may be left out"
    )
    parser.add_argument(
        "--hang", action="store_true", help="only the time around the newest hang (of the --job): what came before, too"
    )
    parser.add_argument("--host", nargs="+", default=[], metavar="H", help="only these hosts (all)")
    parser.add_argument(
        "--since", type=parse_time, metavar="T", help="only from this time on: ISO 8601, UTC unless it says otherwise"
    )
    parser.add_argument("--until", type=parse_time, metavar="T", help="only before this time")
    live = parser.add_argument_group(
        "a live collector: iterations and the newest verdicts, and full resolution from the agents' recorders"
    )
    live.add_argument("--last", default="5s", **TIME, help="how much (%(default)s)")
    declare(live, Security)
    parser.add_argument(
        "--width",
        type=parse_duration,
        metavar="W",
        help="width of a point of the rate curves (as narrow as a viewer can open)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file; says on standard output what it holds."""
    require(_NEEDS, "make a trace", "trace")
    if not str(args.out).endswith(_PERFETTO + _CHROME):
        raise UsageError(f"the format of {args.out} is unknown: end it in {', '.join(_PERFETTO + _CHROME)}")
    from netmon.wire.watch import is_address

    if not is_address(args.data):
        args.data = Path(args.data)
        return _write(args)
    return _write_live(args)


def _write_live(args: argparse.Namespace) -> int:
    from netmon.trace.dataset import MOST_NS, fetch

    for name in ("merge", "iterations", "hang", "since", "until"):
        if getattr(args, name):
            raise UsageError(f"cannot trace a live collector with --{name}: that takes its dataset")
    if not 0 < args.last <= MOST_NS:
        raise UsageError(f"cannot trace the last {format_duration(args.last)}: at most {format_duration(MOST_NS)}")
    from netmon.terminal import say

    with tempfile.TemporaryDirectory(prefix="netmon-trace-") as folder:
        gaps = fetch(args.data, read_options(Security, args), args.job, args.host, args.last, Path(folder))
        args.data, args.host, args.job = Path(folder), [], None
        status = _write(args)
    for line in gaps:
        say(line)
    return status


def _write(args: argparse.Namespace) -> int:
    from netmon.commands.export import iterations
    from netmon.history.dataset import Window, job_names, requested_job
    from netmon.history.groups import around, read_hangs
    from netmon.terminal import say
    from netmon.trace.dataset import clocks, look, write
    from netmon.trace.merge import place
    from netmon.trace.merge import write as write_profiles

    spans = iterations(args.iterations) if args.iterations else (None, None)
    names = job_names(args.data)
    job = requested_job(args.job, names)
    since_ns, until_ns = args.since, args.until
    if args.hang:
        if not (hangs := read_hangs(args.data, job)):
            raise DataError(f"cannot trace a hang: {args.data} has none{f' of job {args.job}' if job else ''}")
        job, (since_ns, until_ns) = hangs[0].job, around(hangs[0])
    content = look(args.data, Window(since_ns, until_ns, job, tuple(args.host), spans), args.width, names)
    placed = place(args.merge, content.iterations, clocks(args.data), job, names) if args.merge else []
    with _writer(args.out, content.begin_ns) as writer:
        hosts = write(args.data, content, writer, _progress("the rows"))
        written = write_profiles(
            placed, hosts, writer, content.begin_ns, content.end_ns, lambda path: _progress(path.name)
        )
    print(
        f"{args.out}: {format_duration(content.end_ns - content.begin_ns)} of {len(content.hosts)} hosts, "
        f"{len(content.iterations)} iterations, {len(content.verdicts)} verdicts, rates every "
        f"{format_duration(content.width_ns)}; {format_bytes(args.out.stat().st_size)}"
    )
    for line in written:
        say(line)
    return 0


@contextlib.contextmanager
def _writer(path: Path, begin_ns: int) -> Iterator["TraceWriter"]:
    """Writes alongside, and takes the name when it is complete. Raises DataError where it cannot be written."""
    from netmon.trace.writer import ChromeWriter, PerfettoWriter

    unfinished = path.with_name(f".{path.name}.part")
    try:
        with contextlib.ExitStack() as stack:
            file: IO[bytes] = stack.enter_context(unfinished.open("wb"))
            if path.name.endswith(".gz"):
                file = stack.enter_context(cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="wb", compresslevel=5)))
            writer: TraceWriter = (
                PerfettoWriter(file, begin_ns) if str(path).endswith(_PERFETTO) else ChromeWriter(file, begin_ns)
            )
            yield writer
            writer.close()
        unfinished.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _progress(what: str) -> "Progress":
    """Says on a terminal how far it is."""
    last = -1

    def report(part: float) -> None:
        nonlocal last
        if (percent := int(100 * part)) != last and sys.stderr.isatty():
            last = percent
            text = f"\rnetmon: trace: {percent} % of {what}" if part < 1 else "\r\033[K"
            print(text, end="", file=sys.stderr, flush=True)

    return report
