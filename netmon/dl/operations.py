# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's collectives and transfers are: c10d::OpType."""

from enum import IntEnum


class Operation(IntEnum):
    """In the kernel's calls: `tensors` of kind BEGIN."""

    BROADCAST = 0
    ALL_REDUCE = 1
    ALL_REDUCE_COALESCED = 2
    REDUCE = 3
    ALL_GATHER = 4
    ALL_GATHER_BASE = 5
    ALL_GATHER_COALESCED = 6
    GATHER = 7
    SCATTER = 8
    REDUCE_SCATTER = 9
    ALL_TO_ALL_BASE = 10
    ALL_TO_ALL = 11
    SEND = 12
    RECEIVE = 13
    RECEIVE_ANY = 14
    BARRIER = 15
    REDUCE_SCATTER_BASE = 16

    @property
    def word(self) -> str:
        """As people call it; of kinds that differ in their tensors only, the same."""
        return _WORDS.get(self, self.name.lower()).replace("_", "-")


_WORDS = {
    **dict.fromkeys((Operation.ALL_REDUCE, Operation.ALL_REDUCE_COALESCED), "all-reduce"),
    **dict.fromkeys((Operation.ALL_GATHER_BASE, Operation.ALL_GATHER_COALESCED), "all-gather"),
    **dict.fromkeys((Operation.REDUCE_SCATTER, Operation.REDUCE_SCATTER_BASE), "reduce-scatter"),
    **dict.fromkeys((Operation.ALL_TO_ALL, Operation.ALL_TO_ALL_BASE), "all-to-all"),
    Operation.RECEIVE_ANY: "receive",
}

TRANSFERS = (Operation.SEND, Operation.RECEIVE)
"""Between two ranks that are known from the call."""

ALL_TRANSFERS = (*TRANSFERS, Operation.RECEIVE_ANY)

GATHERS = (Operation.ALL_GATHER, Operation.ALL_GATHER_BASE, Operation.ALL_GATHER_COALESCED)

EXCHANGES = (Operation.ALL_TO_ALL_BASE, Operation.ALL_TO_ALL)

SUMS_FOR_ALL = (Operation.ALL_REDUCE, Operation.ALL_REDUCE_COALESCED)
"""Each rank gets the whole sum, as of gradients in data-parallel training."""

SUMS = (*SUMS_FOR_ALL, Operation.REDUCE, Operation.REDUCE_SCATTER, Operation.REDUCE_SCATTER_BASE)

FROM_OR_TO_ONE = (Operation.BROADCAST, Operation.REDUCE)

SIZED_BY_PART = (Operation.ALL_GATHER, Operation.ALL_GATHER_COALESCED)
"""The first tensor is one rank's part."""

SIZED_AS_WHOLE = (Operation.ALL_GATHER_BASE, Operation.GATHER, Operation.ALL_TO_ALL_BASE, Operation.ALL_TO_ALL)
"""The first tensor has all ranks' parts, or what this rank sends."""
