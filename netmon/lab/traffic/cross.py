# SPDX-License-Identifier: Apache-2.0
"""Cross traffic from one host of a testbed to another, and the truth about it."""

import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from netmon.errors import LabError
from netmon.lab.network import Host
from netmon.lab.process import Process
from netmon.lab.record import now
from netmon.lab.traffic.profiles import PROFILES, Offer


class CrossTraffic(AbstractContextManager["CrossTraffic"]):
    """One sender and one receiver; leaving the context ends both."""

    def __init__(
        self,
        name: str,
        profile: str,
        source: Host,
        target: Host,
        offer: Offer,
        logs: Path,
        priority: Sequence[str] = (),
        *,
        waiting: bool = False,
    ) -> None:
        """Start the receiver and block until it listens. Nothing is sent before begin().

        waiting: the sender is started now, where it can wait, so that its start costs no CPU time later. priority: a
        command that starts sender and receiver, such as PRIORITY of netmon.lab.process.
        """
        self._name, self._source, self._offer, self._logs, self._priority = name, source, offer, logs, priority
        self._profile = PROFILES[profile]
        self._sender: Process | None = None
        self._begun = False
        command = [*self._priority, *self._profile.receiver(offer)]
        self._receiver = Process(f"{name}-receiver", command, logs, host=target)
        try:
            self._receiver.wait_output(self._profile.listening, 10)
            if waiting and self._profile.signalled:
                self._sender = self._start(self._profile.signalled)
                self._sender.wait_output("ready", 30)
        except BaseException:
            if self._sender:
                self._sender.end()
            self._receiver.end()
            raise
        self.truth: dict[str, Any] = {
            "name": name,
            "profile": profile,
            "from": source.name,
            "to": target.name,
            "to_port": offer.port,
            "offered_bps": offer.load_bps,
        }

    @property
    def begun(self) -> bool:
        return self._begun

    def begin(self) -> None:
        """Start the sender and block until it sends. Raises LabError.

        `started` in the truth is when it began, as it says itself; iperf3 does not, and begins some milliseconds later.
        """
        started = now()
        self._begun = True
        if self._sender:
            os.kill(self._sender.pid, signal.SIGUSR1)
        else:
            self._sender = self._start()
        self.truth["started"] = started
        if self._profile.sending:
            since = int(self._sender.wait_output(self._profile.sending, 10)[1])
            self.truth["started"] = {"mono_ns": since, "utc_ns": since + started["utc_ns"] - started["mono_ns"]}

    @property
    def processes(self) -> list[Process]:
        """Receiver and, once it was started, sender."""
        return [self._receiver, *([self._sender] if self._sender else [])]

    def check(self) -> None:
        """Raise LabError if sender or receiver has ended: neither does by itself."""
        self._receiver.check_running()
        if self._sender:
            self._sender.check_running()

    def stop(self) -> None:
        """Stop the sender, if it was started, and complete the truth with what it sent. Raises LabError."""
        if not self._sender or not self._begun or "ended" in self.truth:
            return
        self._sender.check_running()
        self._sender.end()
        self.truth["ended"] = now()
        try:
            self.truth |= self._profile.account(self._sender.output())
        except (ValueError, LookupError):
            name, log = self._sender.name, self._sender.log
            raise LabError(f"what {name} sent is unknown: it ended without its account; see {log}") from None

    def _start(self, options: Sequence[str] = ()) -> Process:
        command = [*self._priority, *self._profile.sender(self._offer), *options]
        return Process(f"{self._name}-sender", command, self._logs, host=self._source)

    def __exit__(self, *exception: object) -> None:
        if self._sender:
            self._sender.end()
        self._receiver.end()
