# SPDX-License-Identifier: Apache-2.0
"""When one host said little to another: messages that are no gradients."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from netmon.dl.inference.pattern import Edge

_MOST = 8192  # moments kept per pair


class Words:
    """The last moments in which one host sent another some bytes that fill no segment; at most 8,192 of each pair.

    Ranks agree on what comes next in such messages. While gradients are under way they are silent, in Horovod and
    whatever else does both in one thread. So the first one after its last gradient shows that a rank is through with
    the iteration: that it has taken over what came last, and got rid of what it had to pass on.
    """

    def __init__(self, resolution_ns: int) -> None:
        self._resolution_ns = resolution_ns
        self._moments: dict[Edge, npt.NDArray[np.int64]] = {}

    def add(self, pairs: Iterable[tuple[Edge, npt.NDArray[np.int64]]]) -> None:
        """Times of one pair's messages, none much earlier than those added before; any order, repeats do no harm."""
        for pair, time_ns in pairs:
            before = self._moments.get(pair, np.empty(0, np.int64))
            self._moments[pair] = np.unique(np.concatenate((before, time_ns)))[-_MOST:]

    def forget(self, before_ns: int) -> None:
        """Pairs that have been silent since are of no interest any more."""
        self._moments = {pair: moments for pair, moments in self._moments.items() if moments[-1] >= before_ns}

    def first(self, sender: str, others: Iterable[str], since_ns: int, before_ns: int) -> int | None:
        """When the sender spoke to one of the others first, in [since, before); to half the resolution."""
        found = []
        for other in others:
            moments = self._moments.get((sender, other))
            if moments is not None:
                index = int(np.searchsorted(moments, since_ns))
                found += moments[index : index + 1].tolist()
        first = min(found, default=before_ns)
        return first + self._resolution_ns // 2 if first < before_ns else None
