# SPDX-License-Identifier: Apache-2.0
"""Messages at which the collector failed, kept on disk for a bug report: a few, and not many bytes."""

import logging
import re
import struct
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from netmon.wire import netmon_pb2

_log = logging.getLogger(__name__)

Sent = netmon_pb2.AgentMessage | bytes
"""A message of an agent, or its bytes, where another process has read it."""

FOLDER = ".set-aside"
"""Below the dataset's directory; readers of the dataset pass over it."""

MOST_FILES, MOST_BYTES = 64, 64 << 20
_MOST_OF_SESSION = 2
_MOST_SESSIONS = 4_096  # remembered
_LENGTH = struct.Struct("<I")


class Quarantine:
    """One per dataset. A failure is logged once for each file; what a session fails at after that is only counted."""

    def __init__(self, directory: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        """directory: the dataset's."""
        self.folder, self._most_files, self._most_bytes = directory / FOLDER, most_files, most_bytes
        self._kept: OrderedDict[str, int] = OrderedDict()  # by session
        self._count = 0

    def store(self, session: str, what: str, messages: Sequence[Sent], error: BaseException) -> str:
        """Write messages and traceback down, and log where; returns what to tell the sender. Blocks for the disk."""
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
                data += _LENGTH.pack(len(one)) + one
        self.folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", session)[:64]
        path = self.folder / f"{time.time_ns()}-{self._count}-{safe}"
        path.with_name(f"{path.name}.txt").write_text(lines[-100_000:])
        path.with_name(f"{path.name}.messages").write_bytes(data)
        self._bound()
        return path.with_name(f"{path.name}.messages")

    def _bound(self) -> None:
        """Drop the oldest; names go by time."""
        files = sorted(self.folder.iterdir(), reverse=True)
        size = 0
        for number, path in enumerate(files):
            size += path.stat().st_size
            if number >= self._most_files or size > self._most_bytes:
                path.unlink(missing_ok=True)


def read_messages(path: Path) -> Iterator[netmon_pb2.AgentMessage]:
    """The messages of a file that was set aside, the hello first."""
    data, offset = path.read_bytes(), 0
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        yield netmon_pb2.AgentMessage.FromString(data[offset : offset + length])
        offset += length
