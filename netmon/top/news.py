# SPDX-License-Identifier: Apache-2.0
"""What comes to the interactive program from other threads: snapshots, and answers about the past."""

import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from textual.message import Message
from textual.message_pump import MessagePump

from netmon.views import Snapshot
from netmon.wire.watch import Outage

_JOIN_S = 0.5


class Update(Message):
    """A snapshot has come, or the collector is gone."""

    def __init__(self, update: Snapshot | Outage) -> None:
        """update: as the source sent it."""
        super().__init__()
        self.update, self.received_ns = update, time.time_ns()


class Ended(Message):
    """There will be no more snapshots."""

    def __init__(self, error: Exception | None) -> None:
        """error: why, if it was not their end."""
        super().__init__()
        self.error = error


@dataclass
class Answer(Message):
    """What a question about the past has led to."""

    number: int  # of the question
    found: Any = None
    error: Exception | None = None


class Reader:
    """Reads snapshots on a thread of its own, and posts each."""

    def __init__(self, updates: Iterable[Snapshot | Outage], to: MessagePump) -> None:
        """Begin. A reading that blocks for ever ends with the process."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(updates, to), name="snapshots", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the reading end with its next snapshot."""
        self._stopped.set()
        self._thread.join(_JOIN_S)

    def _read(self, updates: Iterable[Snapshot | Outage], to: MessagePump) -> None:
        error = None
        try:
            for update in updates:
                if self._stopped.is_set():
                    return
                to.post_message(Update(update))
        except Exception as caught:
            error = caught
        finally:
            # Here, while all threads live: a connection that is let go of when Python ends waits for one that does not.
            if isinstance(updates, Generator):
                updates.close()
        if not self._stopped.is_set():
            to.post_message(Ended(error))


class QueryThread:
    """Asks about the past, one question after the other, on a thread of its own; of those that wait only the newest."""

    def __init__(self, to: MessagePump) -> None:
        self._to = to
        self._waiting: tuple[int, Callable[[], Any]] | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="past", daemon=True)
        self._thread.start()

    def submit(self, number: int, question: Callable[[], Any]) -> None:
        """Have it answered; what waits to be asked is not asked any more."""
        with self._changed:
            self._waiting = number, question
            self._changed.notify()

    def stop(self) -> None:
        """Ask nothing more."""
        with self._changed:
            self._over, self._waiting = True, None
            self._changed.notify()
        self._thread.join(_JOIN_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._over)
                if self._waiting is None:
                    return
                (number, question), self._waiting = self._waiting, None
            try:
                answer = Answer(number, question())
            except Exception as error:
                answer = Answer(number, error=error)
            if not self._over:
                self._to.post_message(answer)
