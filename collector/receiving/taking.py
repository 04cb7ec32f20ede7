# SPDX-License-Identifier: Apache-2.0
"""What has come on all streams, into the registry: in one tick, where each batch has its turn in its session."""

from collections.abc import Mapping

import numpy as np

from collector.door import FailedBatchError, RefusedBatchError
from collector.entry import Came, Entry
from collector.receiving.frames import Received
from collector.receiving.sessions import StreamApart
from collector.registry import Registry
from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.many import keep


def take(registry: Registry, received: Received, streams: Mapping[int, StreamApart]) -> None:
    """Take it in; what is not fresh, or of a stream that is over, is left out."""
    many = received.many
    rows = np.bincount(many.rows["batch"], minlength=len(received.streams)).tolist()
    horizons, utcs = (many.heads[name].tolist() for name in ("horizon_ns", "utc_ns"))
    good, came = np.zeros(len(received.streams), np.bool_), []
    batches = zip(received.streams, received.sequences, rows, horizons, utcs, received.raw, strict=True)
    for index, (number, sequence, count, horizon_ns, utc_ns, raw) in enumerate(batches):
        stream = streams.get(number)
        if stream is None or not stream.takes:
            continue
        entry = stream.entry
        try:
            fresh = stream.connection.order.accept_number(sequence)
            if fresh:
                good[index] = True
                came.append(Came(entry, sequence, count, horizon_ns, raw))
            elif index in many.refused:
                raise RefusedBatchError(sequence, entry.session.hello.host, many.refused[index])
            else:
                _describe(stream, received, index)
        except RefusedBatchError as error:
            entry.refused = error
            entry.news.set()
            continue
        except Exception as error:
            _failed(registry, entry, raw, error)
            continue
        registry.heard_at(entry, utc_ns)
    _fail(registry, received, streams)
    many = many if good.all() else keep(many, good)
    if not registry.careful:
        registry.receive(came, many)
        return
    for place, one in enumerate(came):
        if not one.entry.broken:  # by a batch before it
            registry.receive([one], keep(many, np.arange(len(came)) == place))


def _describe(stream: StreamApart, received: Received, index: int) -> None:
    flows = [flow for batch, flow in received.many.flows if batch == index]
    try:
        stream.connection.order.describe(flows)
    except WireError as error:
        host = stream.entry.session.hello.host
        raise RefusedBatchError(received.sequences[index], host, error) from None


def _fail(registry: Registry, received: Received, streams: Mapping[int, StreamApart]) -> None:
    """Messages at which reading them failed."""
    for number, raw, trouble in received.failed:
        stream = streams.get(number)
        if stream and stream.takes:
            _failed(registry, stream.entry, raw, RuntimeError(trouble))


def _failed(registry: Registry, entry: Entry, raw: bytes, error: Exception) -> None:
    """The session is not what it should be any more."""
    hello, sequence = entry.session.hello, netmon_pb2.AgentMessage.FromString(raw).batch.sequence
    told = registry.failures.set_aside(hello, f"batch {sequence}", [raw], error)
    entry.broken, entry.refused = True, FailedBatchError(sequence, hello.host, told)
    entry.news.set()
