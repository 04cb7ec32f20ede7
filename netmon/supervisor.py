# SPDX-License-Identifier: Apache-2.0
"""What a service says to whoever has started it: that it is ready, that it is alive, that it stops (sd_notify)."""

import os
import time

import sdnotify

_SIGNS = 4  # of life, in the time after which it is taken for dead


class Supervisor:
    """Does nothing where nobody asked for it. Never blocks; belongs to one thread."""

    def __init__(self) -> None:
        """Reads what systemd has put into the environment."""
        self._notifier = sdnotify.SystemdNotifier() if "NOTIFY_SOCKET" in os.environ else None
        meant = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given_us = os.environ.get("WATCHDOG_USEC", "") if meant and self._notifier else ""
        self._interval_ns = int(given_us) * 1_000 // _SIGNS if given_us.isdecimal() else 0
        self._due_ns = 0

    def ready(self) -> None:
        self._notify("READY=1")

    def alive(self) -> None:
        """To be called in the service's own loop, as often as it turns: says so often enough, and no more."""
        if self._interval_ns and (now := time.monotonic_ns()) >= self._due_ns:
            self._due_ns = now + self._interval_ns
            self._notify("WATCHDOG=1")

    def stopping(self) -> None:
        """It ends by itself, or was stopped."""
        self._notify("STOPPING=1")

    def close(self) -> None:
        if self._notifier:
            self._notifier.socket.close()
            self._notifier = None

    def _notify(self, state: str) -> None:
        if self._notifier:
            self._notifier.notify(state)
