# SPDX-License-Identifier: Apache-2.0
"""What the collector has failed at: kept on disk for a bug report, and reported once to the agent and to viewers."""

import logging
import re
import struct
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path

from collector.agent_checks import FailedBatchError
from collector.host.session import MOST_RECENT, Sent, Session, read_sent
from netmon.errors import WireError
from netmon.records import Hello
from netmon.service import ClockJumps, jump_text
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_hello

_log = logging.getLogger(__name__)

FOLDER = ".set-aside"
"""Below the dataset's directory; readers of the dataset pass over it."""

MOST_FILES, MOST_BYTES = 64, 64 << 20
_MOST_OF_SESSION = 2
_MOST_SESSIONS = 4_096  # remembered
_MOST_FAILURES = 3  # of a session, until it is not taken in any more
_MOST_FAILED = 4_096  # sessions whose failures are remembered
_MOST_NOTICES = 100
LENGTH = struct.Struct("<I")


class Quarantine:
    """A few files, and not many bytes, of one dataset.

    A failure is logged once for each file; what a session fails at after that is only counted.
    """

    def __init__(self, directory: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self._most_files, self._most_bytes = directory / FOLDER, most_files, most_bytes
        self._kept: OrderedDict[str, int] = OrderedDict()  # by session
        self._count = 0

    def store(self, session: str, what: str, messages: Sequence[Sent], error: BaseException) -> str:
        """Write messages and traceback down, and log where; returns what to send to the sender. Blocks for the disk."""
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        message = f"the collector failed at {what}: {reason}"
        kept = self._kept[session] = self._kept.pop(session, 0) + 1
        if len(self._kept) > _MOST_SESSIONS:
            self._kept.popitem(last=False)
        if kept > _MOST_OF_SESSION:
            return message
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            path = self._write(session, lines, messages)
        except OSError as trouble:
            _log.error(f"{message}; it cannot be set aside in {self.folder}: {trouble.strerror}\n{lines}")
            return message
        _log.error(f"{message}; please report it with {path}")
        return f"{message}; set aside in {path.name}"

    def _write(self, session: str, lines: str, messages: Sequence[Sent]) -> Path:
        data = bytearray()
        for message in messages:
            one = message if isinstance(message, bytes) else message.SerializeToString()
            if len(data) + len(one) <= self._most_bytes // 4:
                data += LENGTH.pack(len(one)) + one
        self.folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", session)[:64]
        path = self.folder / f"{time.time_ns()}-{self._count}-{safe}"
        path.with_name(f"{path.name}.txt").write_text(lines[-100_000:])
        path.with_name(f"{path.name}.messages").write_bytes(data)
        self._bound()
        return path.with_name(f"{path.name}.messages")

    def _bound(self) -> None:
        files = sorted(self.folder.iterdir(), reverse=True)
        size = 0
        for number, path in enumerate(files):
            size += path.stat().st_size
            if number >= self._most_files or size > self._most_bytes:
                path.unlink(missing_ok=True)


class Failures:
    """Of one collector. What it fails at costs one session, or one line for viewers."""

    def __init__(self, directory: Path) -> None:
        self._quarantine = Quarantine(directory)
        self._of_session: Counter[str] = Counter()  # as a whole, by name
        self._notices: dict[str, None] = {}
        self.jumps = ClockJumps()

    @property
    def notices(self) -> list[str]:
        return list(self._notices)

    def check(self, hello: Hello) -> None:
        """Raise WireError for a session that was failed at too often."""
        if self._of_session[hello.session] >= _MOST_FAILURES:
            raise WireError(
                f"session {hello.session} of {hello.host} is refused: the collector has failed at it "
                f"{_MOST_FAILURES} times; see {self._quarantine.folder}"
            )

    def notice(self, line: str, error: Exception | None = None) -> None:
        if line not in self._notices and len(self._notices) < _MOST_NOTICES:
            self._notices[line] = None
            _log.warning(line, exc_info=error)

    def check_clock(self) -> None:
        """To be called now and then: a clock that somebody has set is said; hosts' clocks are compared with it."""
        if jump_s := self.jumps.check():
            _log.warning(f"this machine's clock was {jump_text(jump_s)}: the UTC of all hosts' rows steps with it")

    def at_hello(self, hello: Hello, error: Exception) -> str:
        """A session cannot be opened; returns what to send to its agent."""
        self._count(hello)
        return self._set_aside(hello, "its hello", [], error)

    def at_message(self, session: Session, message: Sent, error: Exception) -> FailedBatchError:
        """At a message that was not accepted; returns what to send to its agent."""
        sequence = read_sent(message).batch.sequence
        reason = self._set_aside(session.hello, f"batch {sequence}", [message], error)
        return FailedBatchError(sequence, session.hello.host, reason)

    def at_session(self, session: Session, what: str, error: Exception) -> None:
        """At a session as a whole: it is discarded, and all others go on."""
        if not session.broken:
            self._count(session.hello)
            session.fail(self._set_aside(session.hello, what, list(session.recent), error))

    def at_batch(self, session: Session, sequence: int, error: Exception) -> None:
        """At a batch, 0: at no single one: the session begins anew, from the dataset."""
        if not sequence:
            self.at_session(session, "its rows", error)
            return
        messages = [message for message in session.recent if read_sent(message).batch.sequence == sequence]
        reason = self._set_aside(session.hello, f"batch {sequence}", messages, error)
        session.refuse(FailedBatchError(sequence, session.hello.host, reason))

    def at_everything(
        self, sessions: Sequence[Session], queued: Sequence[tuple[Session, Sent]], error: Exception
    ) -> None:
        """At a tick as a whole: every session is taken up from the dataset. queued: the batches that were in it.

        A batch that was alone is to blame; else it is found when it comes again.
        """
        reason = "the collector failed, and takes every session up from the dataset"
        alone = len(queued) == 1
        for session, message in queued[:MOST_RECENT]:
            sequence = read_sent(message).batch.sequence
            what = f"batch {sequence}" if alone else f"batch {sequence}, or another one of those"
            why = self._set_aside(session.hello, what, [message], error)
            if alone:
                session.refuse(FailedBatchError(sequence, session.hello.host, why))
        if not queued:
            _log.error(reason, exc_info=error)
        for session in sessions:
            session.fail(reason)

    def _set_aside(self, hello: Hello, what: str, messages: Sequence[Sent], error: Exception) -> str:
        """Keep what the collector failed at for a bug report, after the hello; returns what to send to its sender."""
        opening = netmon_pb2.AgentMessage(hello=encode_hello(hello))
        return self._quarantine.store(hello.session, f"{what} of {hello.host}", [opening, *messages], error)

    def _count(self, hello: Hello) -> None:
        self._of_session[hello.session] += 1
        for name in list(self._of_session)[:-_MOST_FAILED]:
            del self._of_session[name]
