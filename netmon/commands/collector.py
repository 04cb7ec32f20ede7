# SPDX-License-Identifier: Apache-2.0
"""`netmon collector`: the service that agents stream to and viewers watch."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from collector.settings import AT_ONCE, Settings
from netmon.commands.service_options import Service, heed_hangup
from netmon.errors import UnsupportedError
from netmon.options import declare, read_options
from netmon.own_module import require, to_install

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa

    from collector.bus.worker import WorkerSettings
    from collector.metrics.spans import Spans
    from netmon.dl.sharing.advice import Advice
    from netmon.views import RowQuery, Verdict

HELP = "collect what agents stream: classify it, store it as Parquet, serve live views"
_ADVISED_S = 30.0
_MOST_JOBS = 48  # that are compared with each other
EXAMPLES = """\
  netmon collector --listen localhost:9400 --data out --metrics localhost:9464
  netmon collector --listen 0.0.0.0:9400 --tls /etc/netmon/tls --data /var/lib/netmon
  netmon collector --data /var/lib/netmon --keep buckets=7d full=10GB all=90d
  netmon collector --bus nats://bus1:4222,nats://bus2:4222 --worker w1 --tls /etc/netmon/tls --data /shared/netmon
  netmon collector --listen 0.0.0.0:9400 --tls tls --tokens tls/tokens --token-listen 0.0.0.0:9401 --data out
  netmon collector --data /var/lib/netmon --host-rates rows=8e6 flows=1e4
  netmon collector --data /tmp/netmon --durability process
  netmon collector --listen unix:/run/netmon/collector.sock --data out --parameters 25.6e6
  netmon collector --data out --http localhost:9480
  netmon collector --data out --otlp http://localhost:4318/v1/traces
  netmon collector --config /etc/netmon/collector.toml --print-config
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    declare(parser, Settings, Service)


def run(args: argparse.Namespace) -> int:
    """Collect until a signal."""
    import asyncio

    from collector.allocator import do_without_pandas, give_back, set_libraries_up

    set_libraries_up()
    from collector.server import serve

    give_back()
    do_without_pandas()
    settings = read_options(Settings, args)

    def adjust(read: argparse.Namespace, changed: "Collection[str]") -> "Collection[str]":
        settings.adjust(read_options(Settings, read))
        return AT_ONCE.intersection(changed)

    heed_hangup(args, adjust)
    if settings.http:
        require(("aiohttp",), "serve a page", "web")
    # A thread that writes cannot be called off, and what is not whole on the disk is as if it had not been written.
    serving = serve(
        settings,
        abandon=lambda: os._exit(0),
        worker=_worker(settings),
        spans=_spans(settings),
        stored=StoredDataset(settings.data),
    )
    asyncio.run(serving)
    return 0


class StoredDataset:
    """What viewers go back to, and late verdicts are made of. What reads it is loaded when somebody does."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def batches(self, wanted: "RowQuery") -> "Iterator[pa.RecordBatch]":
        from netmon.history.past import StoredRows

        return StoredRows(self._data).batches(wanted)

    def verdicts(self, job: str, since_ns: int, until_ns: int) -> "list[Verdict]":
        from netmon.history.judging import verdicts

        return list(verdicts(self._data, job, within_ns=(since_ns, until_ns)))

    def advice(self, jobs: "Collection[str]") -> "Advice":
        from netmon.history.advice import advice

        return advice(self._data, _ADVISED_S, jobs=jobs, most=_MOST_JOBS)


def _spans(settings: Settings) -> "Spans | None":
    """To where --otlp says. Raises UsageError, UnsupportedError without the library."""
    if not settings.otlp:
        return None
    try:
        from collector.metrics.spans import open_spans
    except ImportError:
        raise UnsupportedError(f"cannot send spans: OpenTelemetry is not installed; {to_install('otlp')}") from None
    return open_spans(settings.otlp, settings.listen_config.security)


def _worker(settings: Settings) -> "WorkerSettings | None":
    """What --bus and --worker say. Raises UnsupportedError without the bus's library."""
    if not settings.bus:
        return None
    from collector.bus.worker import WorkerSettings
    from netmon.wire.bus import BusSettings

    security = settings.listen_config.security
    bus = BusSettings(settings.bus, settings.bus_replicas, settings.bus_bytes, security=security)
    return WorkerSettings(bus, settings.worker, settings.weight)
