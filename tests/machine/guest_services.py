# SPDX-License-Identifier: Apache-2.0
"""What the tests of a machine do with its services, and the collector here that its agent sends to."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from guest import BOOTS_S, Guest
from sent_agent import Sent
from waiting import DIES_WITH_US, free_port, wait_for


class Here:
    """A collector on this machine, to which the guest's agent sends."""

    def __init__(self, folder: Path) -> None:
        self.data, self.port, self._log = folder / "data", free_port(), folder / "collector.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*DIES_WITH_US, sys.executable, "-m", "netmon", "collector", "--flush", "200ms"]
        with self._log.open("ab") as log:
            more = ("--listen", f"127.0.0.1:{self.port}", "--data", str(self.data))
            self._process = subprocess.Popen([*command, *more], stderr=log)

    def end(self) -> None:
        """All that it has received is stored."""
        if self._process:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(240)
        self._process = None

    def said(self) -> str:
        return self._log.read_text()

    def batches(self) -> dict[str, int]:
        """Of each session the last batch of which all rows are stored, after `end`."""
        manifest = sqlite3.connect(f"file:{next(self.data.rglob('manifest.sqlite'))}?mode=ro", uri=True)
        with manifest:
            states = manifest.execute("SELECT session, json_extract(state, '$.complete_sequence') FROM sessions")
            return dict(states.fetchall())


def configure(guest: Guest, port: int, agent: str = "", collector: str = "") -> None:
    """Both services: the agent watches lo and sends to a port of this machine; agent, collector: further lines."""
    plain = "insecure = true\n"
    guest.write(
        "/etc/netmon/agent.toml",
        f'interface = ["lo"]\ncollector = "10.0.2.2:{port}"\nmetrics = "0.0.0.0:9465"\n{plain}{agent}',
    )
    guest.write("/etc/netmon/collector.toml", f'listen = "0.0.0.0:9400"\ndata = "/var/lib/netmon"\n{plain}{collector}')


def batches(guest: Guest) -> float:
    """That the guest's agent has made; −1 where it does not answer."""
    try:
        return guest.metrics()["netmon_agent_batches_total"]
    except OSError:
        return -1


def works(guest: Guest) -> None:
    """Until the guest's agent makes batches, from now on."""
    before = max(0, batches(guest))
    wait_for(lambda: batches(guest) > before + 2, BOOTS_S)


def acknowledged(sent: Sent, more_than: int) -> None:
    """Until more batches are."""
    wait_for(lambda: sent.spool.acknowledged > more_than, BOOTS_S)


def says(guest: Guest, unit: str, words: str, times: int) -> None:
    """Until a unit has said it so often since the guest has booted."""
    guest.wait_for(f"[ $(journalctl -b -q -u netmon-{unit} -g '{words}' | wc -l) = {times} ]", BOOTS_S)


def pid_of(guest: Guest, unit: str) -> str:
    """Of its main process: the same as before where nobody has started it again."""
    return guest.run(f"systemctl show -P MainPID netmon-{unit}").strip()
