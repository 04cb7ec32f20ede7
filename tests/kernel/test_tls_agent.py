# SPDX-License-Identifier: Apache-2.0
"""A real agent, without capabilities by then, and a collector on another host: TLS, and nothing without it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from conftest import Network
from pair import NETMON
from test_cuts import Cut

from netmon.certificates import Authority
from netmon.lab.process import Process
from netmon.service import service_user
from netmon.wire.security import Identity, Role

pytestmark = pytest.mark.kernel


class Protected(Cut):
    """Each end with its folder."""

    def __init__(self, network: Network, folder: Path, cleanup: ExitStack) -> None:
        super().__init__(network, folder, cleanup)
        self.more, self.authority = [], Authority.make(folder / "pki")
        self.ends = {
            "collector": self.authority.issue(Identity(Role.COLLECTOR, "c"), [self.far.address]).folder,
            "agent": self.authority.issue(Identity(Role.AGENT, "right")).folder,
            "viewer": self.authority.issue(Identity(Role.FULL, "v")).folder,
        }

        user = service_user()
        assert user
        (folder / "pki").chmod(0o711)
        for path in (self.ends["agent"], *self.ends["agent"].iterdir()):
            os.chown(path, 0, user.gid)
            path.chmod(path.stat().st_mode | (0o050 if path.is_dir() else 0o040))

    def _start_collector(self) -> Process:
        self.more = ["--tls", str(self.ends["collector"])]
        try:
            return super()._start_collector()
        finally:
            self.more = ["--tls", str(self.ends["agent"])]

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        words = ["ip", "netns", "exec", self.right.namespace.name, *NETMON, *command]
        return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def watched(network: Network, tmp_path: Path) -> Iterator[Protected]:
    with ExitStack() as cleanup:
        yield Protected(network, tmp_path, cleanup)


def test_an_agent_on_another_host(watched: Protected) -> None:
    collector, agent = watched.both()
    watched.transfer(5)
    viewer = str(watched.ends["viewer"])
    one = watched.inside("top", "--once", "--json", "--collector", watched.address, "--tls", viewer)
    assert (one.returncode, '"host": "right"' in one.stdout) == (0, True), one.stderr
    plain = watched.inside("top", "--once", "--collector", watched.address)
    assert (plain.returncode, "without encryption: give --tls DIR" in plain.stderr) == (2, True)
    agent.end_in_order(seconds=30)
    collector.end_in_order(seconds=60)
    rows = pd.read_parquet(watched.data / "buckets")
    assert rows["payload_bytes"].sum() > 0  # that it is all is tested elsewhere


def test_a_wrong_name_is_said_at_once(watched: Protected) -> None:
    command = [*watched.agent_command(), "--tls", str(watched.ends["agent"]), "--host", "left"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is of agent right, and this host is called left: give --host right, or another certificate" in done.stderr
