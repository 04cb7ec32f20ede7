# SPDX-License-Identifier: Apache-2.0
"""Whether the steps of a rank explain what it sends: the calls of its training library are the account.

Steps are known by the gradients that are summed. Where ranks send each other much else in every step, as FSDP gathers
parameters, a pipeline hands activations on and tokens go to their experts, such steps are not what happens there.
Before the first step, at its start, a job may send each other anything.
"""

from collections import deque
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from netmon.dl.grouped import joined
from netmon.dl.operations import byte_sizes
from netmon.records import LIBRARY_HOROVOD, OF_EACH, OF_ONE, STEP, STEP_ENQUEUE, STEP_TRANSFER, Table, empty

_LEAST_SHARE = 0.2  # of a step's bytes that no sum explains: what evaluations and buffers take is less
_STEPS, _FEWEST = 8, 3  # steps that are judged together
_SENT_IN_SUM = 2  # times its bytes: a reduce, then an all-gather
_LEAST_BYTES = 1 << 16  # before the first step, to be judged
_LEAST_CALLS, _PATIENCE_NS = 16, 10_000_000_000  # without any step
_MOST_CALLS = 20_000  # of one step


class Understanding(IntEnum):
    """What is known of a rank's steps."""

    UNDERSTOOD = 0
    UNDECIDED = 1  # something else is sent: nobody knows yet whether steps explain it
    NOT_UNDERSTOOD = 2


class StepAccount:
    """Of one process. It begins anew when the job is set up anew."""

    def __init__(self) -> None:
        self.state = Understanding.UNDERSTOOD
        self._calls: list[Table] = []  # dtype STEP, since the last step began
        self._shares: deque[float] = deque(maxlen=_STEPS)
        self._since_ns = 0  # the last step began; 0: none has
        self._unexplained: list[int] = []  # when something was sent before the first step
        self._unexplained_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether the steps that are known now may still turn out to be understood."""
        return self.state is not Understanding.UNDERSTOOD and len(self._shares) < _FEWEST

    def add(self, calls: Table, begun_ns: Sequence[int], step_bytes: int, ranks: int) -> None:
        """calls: dtype STEP, of one process, in order; begun_ns: steps that are known by now to have begun, ascending.

        step_bytes: of the gradients of a step, 0: not known; ranks: of the job.
        """
        sizes = calls[(calls["kind"] == STEP_TRANSFER) | (calls["kind"] == STEP_ENQUEUE)]
        if len(sizes):
            self._calls.append(sizes)
        if not self._since_ns:
            self._wait(sizes, ranks)
        if begun_ns:
            self._close(begun_ns, step_bytes, ranks)
        if sum(map(len, self._calls)) > _MOST_CALLS:
            self._calls = [joined(self._calls)[-_MOST_CALLS // 2 :]]

    def _close(self, begun_ns: Sequence[int], step_bytes: int, ranks: int) -> None:
        edges = np.sort([*([self._since_ns] if self._since_ns else []), *begun_ns])
        calls = joined([empty(STEP), *self._calls])
        step = np.searchsorted(edges, calls["time_ns"].astype(np.int64), "right") - 1
        for number in range(len(edges) - 1):
            share = _share(calls[step == number], step_bytes, ranks)
            self._shares += [share] if share >= 0 else []
        self._calls, self._since_ns = [calls[step == len(edges) - 1]], int(edges[-1])
        self._judge()

    def _judge(self) -> None:
        many = sum(share > _LEAST_SHARE for share in self._shares)
        if len(self._shares) >= _FEWEST and 2 * many >= len(self._shares):
            self.state = Understanding.NOT_UNDERSTOOD
        elif many and len(self._shares) < _FEWEST:
            self.state = max(self.state, Understanding.UNDECIDED)
        elif not many and len(self._shares) >= (_FEWEST if self.state is Understanding.NOT_UNDERSTOOD else 1):
            self.state = Understanding.UNDERSTOOD

    def _wait(self, calls: Table, ranks: int) -> None:
        """No step had begun by now."""
        sent = calls[(calls["kind"] == STEP_TRANSFER) & (calls["name_hash"] != OF_ONE)]
        self._unexplained_bytes += int(_bytes(sent, ranks).sum())
        self._unexplained = [*self._unexplained, *sent["time_ns"].tolist()][: _LEAST_CALLS + 1]
        if not len(sent) or self._unexplained_bytes < _LEAST_BYTES:
            return
        many, long = (
            len(self._unexplained) > _LEAST_CALLS,
            int(sent["time_ns"][-1]) - self._unexplained[0] > _PATIENCE_NS,
        )
        self.state = max(self.state, Understanding.NOT_UNDERSTOOD if many and long else Understanding.UNDECIDED)


def _bytes(calls: Table, ranks: int) -> npt.NDArray[np.float64]:
    times = np.where((calls["kind"] == STEP_TRANSFER) & (calls["name_hash"] == OF_EACH), max(ranks, 1), 1)
    return byte_sizes(calls["size"]) * times


def _share(calls: Table, step_bytes: int, ranks: int) -> float:
    """Of what a rank sends in a step, the part that no sum explains; −1: not known.

    What libraries do by way of the next one is reported by both: the one with most of it counts. What Horovod does by
    way of NCCL is no transfer.
    """
    sent, sums = calls["kind"] == STEP_TRANSFER, calls["kind"] == STEP_ENQUEUE
    if (calls["library"] == LIBRARY_HOROVOD).any():
        sent &= calls["library"] == LIBRARY_HOROVOD
    summed = np.bincount(calls["library"][sums], byte_sizes(calls["size"][sums]), minlength=1).max()
    other, explained = _bytes(calls[sent], ranks).sum(), _SENT_IN_SUM * max(summed, step_bytes)
    if not explained:
        return 0.0 if other < _LEAST_BYTES else -1.0
    return float(other / (other + explained))
