# SPDX-License-Identifier: Apache-2.0
"""Batches as a collector has them that got them as messages."""

from collections.abc import Sequence

from netmon.records import Batch
from netmon.wire.batch_fields import ManyBatches, decode_many
from netmon.wire.batches import encode_batch


def gather(batches: Sequence[Batch]) -> ManyBatches:
    many = decode_many([encode_batch(batch) for batch in batches])
    assert not many.refused, many.refused
    return many
