# SPDX-License-Identifier: Apache-2.0
"""`netmon replay`: what an agent would have counted, from what tcpdump has captured."""

import argparse
import ipaddress
import logging
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from netmon.errors import DataError, UsageError
from netmon.options import DIR, RATE, TIME

if TYPE_CHECKING:
    from netmon.replay.replay import Replay

HELP = "fill the same tables from captures of tcpdump (pcap, pcapng)"
EXAMPLES = """\
  netmon replay eth0.pcap --data out
  netmon replay dump.pcap0 dump.pcap1 --data out --host node3 --address 10.0.0.3 fd00::3 --capacity 25gbit
  netmon replay eth0.pcapng --data out --dl-address 10.0.0.4 10.0.0.5      # training's hosts; the rest is cross
"""
_PENDING_BYTES = 256 << 20
_SAY_S = 5.0

log = logging.getLogger(__name__)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "captures", nargs="+", type=Path, metavar="CAPTURE", help="captures of one host; they are merged by time"
    )
    parser.add_argument("--data", required=True, **DIR, help="the dataset's directory")
    parser.add_argument("--host", default=socket.gethostname(), metavar="NAME", help="name of the captured host")
    parser.add_argument("--bucket", default="10us", **TIME, help="bucket width, 1us to 1s (10us)")
    parser.add_argument("--capacity", default=0, **RATE, help="capacity of the captured link")
    parser.add_argument(
        "--address", nargs="+", type=_address, default=[], metavar="ADDR", help="the host's own addresses (guessed)"
    )
    parser.add_argument(
        "--dl-port", nargs="+", type=int, default=[], metavar="PORT", help="ports of the training's flows"
    )
    parser.add_argument(
        "--dl-address",
        nargs="+",
        type=_address,
        default=[],
        metavar="ADDR",
        help="addresses of the training's flows at the far end",
    )


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise UsageError(f"cannot read {text!r} as an address: write it like 10.0.0.3 or fd00::3") from None


def run(args: argparse.Namespace) -> int:
    """Replay; exit status 1 where a capture is damaged, after what is whole has been stored."""
    from netmon.replay.replay import Replay, Rule, Settings

    if not 1_000 <= args.bucket <= 1_000_000_000:
        raise UsageError(f"--bucket has to be from 1us to 1s, not {args.bucket} ns")
    rule = Rule(frozenset(args.dl_port), frozenset(args.dl_address))
    captures = tuple(dict.fromkeys(args.captures))
    settings = Settings(captures, args.host, args.bucket, args.capacity, tuple(args.address), rule)
    with closing(Replay(settings)) as replay:
        _refuse_twice(args.data, replay)
        with _staging(args.data, replay.hello.session) as staging:
            _store(replay, staging)
            _publish(staging, args.data, replay.hello.session)
        log.info("%d frames of %s are in %s", replay.frames, args.host, args.data)
        damage = replay.damage()
    if damage:
        raise DataError(f"{'; '.join(damage)}; what is whole is in {args.data}")
    return 0


def _refuse_twice(data: Path, replay: "Replay") -> None:
    session = replay.hello.session
    if next(data.glob(f"buckets/date=*/*/part-{session}-*"), None):
        raise DataError(f"cannot replay into {data}: it has these captures already; choose another --data")


@contextmanager
def _staging(data: Path, session: str) -> Iterator[Path]:
    """A place on the same file system, so that the dataset gets everything or nothing, also when this is killed."""
    staging = data / f".{session}"
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"cannot write to {data}: {error.strerror}; choose another --data") from None
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _store(replay: "Replay", directory: Path) -> None:
    """The collector's own pipeline, without its network and clock."""
    from collector.dataset.manifest import Resume
    from collector.dataset.sink import ParquetSink
    from collector.host.rows import gather
    from collector.host.stage import HostStage
    from collector.host.unstored import flush_tables
    from collector.jobs.rank_registry import RankRegistry
    from collector.settings import Settings

    sink = ParquetSink(directory)
    stage = HostStage(Settings(), RankRegistry().answer)
    index = stage.open(replay.hello, Resume())
    session, unstored = stage.session(index), stage.tables.unstored

    def flush() -> None:
        changed, grown = (stage.tables.flows.unstored(grown).get(index, []) for grown in (False, True))
        flush = session.flush(changed, grown)
        if flush:
            try:
                ledger = {"ledger": stage.tables.unstored_of["ledger"].take()}
                tables = flush_tables([flush], unstored.take(), stage.tables.flows.jobs, others=ledger)
                sink.write(tables, {session.hello.session: flush.state})
            except DataError as error:
                reason = str(error).split("; ")[0]
                raise DataError(f"{reason}; nothing has been added to the dataset, make room and try again") from None
            flush.done()

    said = time.monotonic()
    with closing(sink):
        for batch in replay.batches():
            stage.take([index], gather(batch))
            if unstored.nbytes > _PENDING_BYTES:
                flush()
            if time.monotonic() - said >= _SAY_S:
                said = time.monotonic()
                done = replay.position / max(1, replay.bytes)
                log.info("%d frames, %.0f %% of the captures", replay.frames, 100 * done)
        stage.settle_all([index], leaving=True)
        flush()
        while sink.merge_some(lambda: True, at_once=True):
            pass


def _publish(staging: Path, data: Path, session: str) -> None:
    for part in sorted(staging.glob("*/date=*/hour=*/part-*")):
        name = part.name.replace("part-", f"part-{session}-", 1)
        final = data / part.parent.relative_to(staging) / name
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            part.replace(final)
        except OSError as error:
            raise DataError(f"cannot write to {data}: {error.strerror}; choose another --data") from None
