# SPDX-License-Identifier: Apache-2.0
"""The log: lines for people, JSON, or fields in systemd's journal.

JSON and journal have alongside the message: time, level, logger, and whatever was given as `extra`. What a message
names is in it already, so a program that reads the log needs the fields for choosing lines only.
"""

import json
import logging
import os
import socket
import sys
from datetime import datetime, timezone
from typing import Any

from netmon.marks import harmless

AUTO, TEXT, JSON, JOURNAL = "auto", "text", "json", "journal"
KINDS = (AUTO, TEXT, JSON, JOURNAL)

_JOURNAL = "/run/systemd/journal/socket"
_MOST_BYTES = 48 << 10  # of a field: a datagram has to hold all of them
_OURS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def configure_logs(kind: str, journal: str = _JOURNAL) -> None:
    """From now on. kind: of KINDS; without a journal its lines go to stderr as they would without systemd."""
    if kind == AUTO:
        kind = JOURNAL if _under_systemd() else TEXT
    root = logging.getLogger()
    for old in _ours():
        root.removeHandler(old)
        old.close()
    if kind == TEXT and root.handlers:  # whoever has called us has a log
        return
    handler: logging.Handler = JournalHandler(journal) if kind == JOURNAL else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == JSON else TextFormatter("netmon: %(message)s"))
    handler.netmon = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it says that it has looked for fonts


def log_error(error: Exception) -> None:
    """The last line of a command that has failed: on stderr, whatever else reads the log."""
    if any(isinstance(handler, JournalHandler) or isinstance(handler.formatter, JsonFormatter) for handler in _ours()):
        logging.getLogger("netmon").error("%s", error)
    else:
        print(harmless(f"netmon: {error}"), file=sys.stderr)


def _ours() -> list[logging.Handler]:
    return [handler for handler in logging.getLogger().handlers if getattr(handler, "netmon", False)]


def _under_systemd() -> bool:
    """Whether stderr is the journal's, which systemd says of itself."""
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _OURS and not name.startswith("_")}


class TextFormatter(logging.Formatter):
    """Lines for a terminal, to which names of others do nothing."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Of one record; never more than a line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class JournalHandler(logging.Handler):
    """Speaks the journal's own protocol. What it does not take goes to stderr."""

    def __init__(self, path: str = _JOURNAL) -> None:
        """Of the socket; nothing is sent yet."""
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a journal that hangs must not hang us

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(b"".join(map(_field, *zip(*self._fields(record).items(), strict=True))), self._path)
        except OSError:
            print(harmless(f"netmon: {record.getMessage()}"), file=sys.stderr)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    @staticmethod
    def _fields(record: logging.LogRecord) -> dict[str, str]:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        known = {
            "MESSAGE": message,
            "PRIORITY": str(priority),
            "SYSLOG_IDENTIFIER": "netmon",
            "NETMON_LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
            "THREAD_NAME": record.threadName or "",
        }
        return known | {f"NETMON_{name.upper()}": str(value) for name, value in _extra(record).items()}


def _field(name: str, value: str) -> bytes:
    """A field as the journal takes it: in a line, or with its length where it has more than one."""
    data = value.encode("utf-8", "replace")[:_MOST_BYTES]
    if b"\n" in data:
        return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
    return b"%s=%s\n" % (name.encode(), data)
