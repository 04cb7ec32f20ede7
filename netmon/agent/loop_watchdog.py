# SPDX-License-Identifier: Apache-2.0
"""Notices when the agent's loop stands still, because a disk does not answer, say, or the host was suspended.

What the kernel counts meanwhile waits in its rings; what they cannot hold is in the ledger as lost. Nothing has to be
done about either: it is said once when it begins, and once when it is over, and counted.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from netmon.service import ClockJumps, jump_text

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_STILL_S = 5.0
_SUSPENDED_S = 1.0
_WOKEN_S = 0.1  # what is less the collector's time is not asked for
_OURS = "netmon."


def _asleep_s() -> float:
    """For how long the machine was suspended since it started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class LoopWatchdog:
    """One per agent: `turn` by its loop, a thread that looks now and then."""

    def __init__(self, asleep_s: Callable[[], float] = _asleep_s, jumps: ClockJumps | None = None) -> None:
        self._asleep_s, self._asleep = asleep_s, asleep_s()
        self._turned_asleep = self._asleep
        self.jumps = jumps or ClockJumps()
        self._turned_s = time.monotonic()
        self._still_since = 0.0
        self._loop = threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="standstill", daemon=True)
        self.still_s = 0.0
        """For how long the loop has stood still, all in all, since the start."""
        self.suspended_s = 0.0
        """For how long the machine was suspended since the start."""

    def start(self) -> None:
        """To be called once, by the loop's thread."""
        self._loop, self._turned_s = threading.get_ident(), time.monotonic()
        self._thread.start()

    def turn(self) -> bool:
        """The loop goes on; whether the machine was suspended since it did so last."""
        self._turned_s, before = time.monotonic(), self._turned_asleep
        self._turned_asleep = self._asleep_s()
        return self._turned_asleep - before > _WOKEN_S

    def finish(self) -> None:
        """Nothing is said any more."""
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self.check()

    def check(self) -> None:
        """What has changed since the last time."""
        asleep = self._asleep_s()
        if asleep - self._asleep > _SUSPENDED_S:
            self.suspended_s += asleep - self._asleep
            log.warning("this host was suspended for %.0f s; nothing was counted then", asleep - self._asleep)
        self._asleep = asleep
        if jump_s := self.jumps.check():
            log.warning(
                "this host's clock was %s: rows before and after keep their order, their UTC follows the collector's",
                jump_text(jump_s),
            )
        turned, now = self._turned_s, time.monotonic()
        if self._still_since and turned > self._still_since:
            took, self._still_since = turned - self._still_since, 0.0
            self.still_s += took
            log.warning("the agent goes on after %.0f s", took)
        if not self._still_since and now - turned > _STILL_S:
            self._still_since = turned
            log.warning(
                "the agent has stood still for %.0f s in %s: a disk that does not answer, or a host without CPU time; "
                "what the kernel's rings cannot hold is counted as lost",
                *(now - turned, _where(sys._current_frames().get(self._loop))),
            )


def _where(frame: FrameType | None) -> str:
    """The innermost function of ours that a thread is in."""
    while frame:
        if frame.f_globals.get("__name__", "").startswith(_OURS):
            return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "its loop"
