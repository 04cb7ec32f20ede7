# SPDX-License-Identifier: Apache-2.0
"""What the collector has failed at: kept for a bug report, and reported once to the agent and to viewers."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from collector.agent_checks import FailedBatchError
from collector.entry import MOST_RECENT, Entry, read_sent
from collector.quarantine import Quarantine, Sent
from netmon.errors import WireError
from netmon.records import Hello
from netmon.telemetry.clock_jumps import ClockJumps, jump_text
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello

_log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # of a session, until it is not taken in any more
_MOST_FAILED = 4_096  # sessions whose failures are remembered
_MOST_NOTICES = 100


class Failures:
    """Of one collector. What it fails at costs one session, or one line for viewers."""

    def __init__(self, directory: Path) -> None:
        """directory: the dataset's."""
        self._set_aside = Quarantine(directory)
        self._of_session: Counter[str] = Counter()  # as a whole, by name
        self._notices: dict[str, None] = {}
        self.jumps = ClockJumps()

    @property
    def notices(self) -> list[str]:
        """Lines for viewers."""
        return list(self._notices)

    def check(self, hello: Hello) -> None:
        """Raise WireError for a session that was failed at too often."""
        if self._of_session[hello.session] >= _MOST_FAILURES:
            raise WireError(
                f"session {hello.session} of {hello.host} is refused: the collector has failed at it "
                f"{_MOST_FAILURES} times; see {self._set_aside.folder}"
            )

    def notice(self, line: str, error: Exception | None = None) -> None:
        """Log a line once, and keep it for viewers."""
        if line not in self._notices and len(self._notices) < _MOST_NOTICES:
            self._notices[line] = None
            _log.warning(line, exc_info=error)

    def check_clock(self) -> None:
        """To be called now and then: a clock that somebody has set is said; hosts' clocks are compared with it."""
        if jump_s := self.jumps.check():
            _log.warning(f"this machine's clock was {jump_text(jump_s)}: the UTC of all hosts' rows steps with it")

    def set_aside(self, hello: Hello, what: str, messages: Sequence[Sent], error: Exception) -> str:
        """Keep what the collector failed at for a bug report, after the hello; returns what to tell its sender."""
        opening = netmon_pb2.AgentMessage(hello=encode_hello(hello))
        return self._set_aside.store(hello.session, f"{what} of {hello.host}", [opening, *messages], error)

    def at_hello(self, hello: Hello, error: Exception) -> str:
        """A session cannot be opened; returns what to tell its agent."""
        self._count(hello)
        return self.set_aside(hello, "its hello", [], error)

    def at_session(self, entry: Entry, what: str, error: Exception) -> None:
        """At a session as a whole: it is discarded, and all others go on."""
        hello = entry.session.hello
        if not entry.broken:
            self._count(hello)
            entry.broken, entry.failure = True, self.set_aside(hello, what, list(entry.recent), error)
            entry.news.set()

    def at_batch(self, entry: Entry, sequence: int, error: Exception) -> None:
        """At a batch, 0: at no single one: the session begins anew, from the dataset."""
        hello = entry.session.hello
        if not sequence:
            self.at_session(entry, "its rows", error)
            return
        messages = [message for message in entry.recent if read_sent(message).batch.sequence == sequence]
        jump_text = self.set_aside(hello, f"batch {sequence}", messages, error)
        entry.broken, entry.refused = True, FailedBatchError(sequence, hello.host, jump_text)
        entry.news.set()

    def at_everything(self, entries: Sequence[Entry], queued: Sequence[tuple[Entry, Sent]], error: Exception) -> None:
        """At a tick as a whole: every session is taken up from the dataset. queued: the batches that were in it.

        A batch that was alone is to blame; else it is found when it comes again.
        """
        jump_text = "the collector failed, and takes every session up from the dataset"
        alone = len(queued) == 1
        for entry, message in queued[:MOST_RECENT]:
            hello, sequence = entry.session.hello, read_sent(message).batch.sequence
            what = f"batch {sequence}" if alone else f"batch {sequence}, or another one of those"
            why = self.set_aside(hello, what, [message], error)
            if alone:
                entry.refused = FailedBatchError(sequence, hello.host, why)
        if not queued:
            _log.error(jump_text, exc_info=error)
        for entry in entries:
            entry.broken, entry.failure = True, jump_text
            entry.news.set()

    def _count(self, hello: Hello) -> None:
        self._of_session[hello.session] += 1
        for name in list(self._of_session)[:-_MOST_FAILED]:
            del self._of_session[name]
