# SPDX-License-Identifier: Apache-2.0
"""What every batch says of itself, and how much it may hold."""

from operator import attrgetter

from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.limits import (
    MAX_COUNT,
    MAX_EXCHANGES,
    MAX_FLOWS,
    MAX_LEDGER,
    MAX_MARKS,
    MAX_MONO_NS,
    MAX_NIC,
)

_MOST = {
    "flows": MAX_FLOWS,
    "marks": MAX_MARKS,
    "ledger": MAX_LEDGER,
    "exchanges": MAX_EXCHANGES,
    "nic": MAX_NIC,
}
_counted = attrgetter(*_MOST)


def check_counts(message: netmon_pb2.Batch) -> None:
    """Raise WireError where a batch has too much of something."""
    for name, some in zip(_MOST, _counted(message), strict=True):
        if len(some) > _MOST[name]:
            raise WireError(f"Batch.{name} are {len(some)}, more than {_MOST[name]}")


def check_head(message: netmon_pb2.Batch) -> tuple[int, int]:
    """(sequence, horizon_ns). Raises WireError where one is out of its range, or the clock is missing."""
    sequence, horizon_ns = message.sequence, message.horizon_ns
    if not message.HasField("clock"):
        raise WireError("Batch.clock is missing")
    if sequence == 0:
        raise WireError("Batch.sequence is 0, the first batch has 1")
    if sequence > MAX_COUNT:
        raise WireError(f"Batch.sequence is {sequence}, more than {MAX_COUNT}")
    if horizon_ns < 0:
        raise WireError(f"Batch.horizon_ns is negative: {horizon_ns}")
    if horizon_ns > MAX_MONO_NS:
        raise WireError(f"Batch.horizon_ns is {horizon_ns}, more than {MAX_MONO_NS}")
    return sequence, horizon_ns
