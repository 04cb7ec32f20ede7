# SPDX-License-Identifier: Apache-2.0
"""Network namespaces for kernel tests: randomly named, quiet enough to count exactly, and removed afterwards."""

import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest


def run(*command: str) -> str:
    """A command's standard output; its standard error in the test's failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


@dataclass(frozen=True)
class Namespace:
    """One network namespace, with the loopback up and IPv6 off."""

    name: str

    def run(self, *command: str) -> str:
        """Runs a command inside, waits for it, and returns its standard output."""
        return run(*self.inside(*command))

    def inside(self, *command: str) -> list[str]:
        """The arguments that run a command inside, for subprocess.Popen."""
        return ["ip", "netns", "exec", self.name, *command]

    def set(self, *settings: str) -> None:
        """Its kernel's settings, as sysctl's."""
        pairs = (setting.split("=") for setting in settings)
        writes = (f"echo {value} > /proc/sys/{name.replace('.', '/')}" for name, value in pairs)
        self.run("sh", "-c", " && ".join(writes))


@dataclass(frozen=True)
class End:
    """One end of a veth pair."""

    namespace: Namespace
    interface: str
    index: int
    address: str
    hardware_address: str


class Network:
    """Makes namespaces, and veth pairs between them; all of it goes with the namespaces."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._pairs = 0

    def namespace(self) -> Namespace:
        """A new one, named nmt-…; nothing in it sends of its own accord."""
        namespace = Namespace(f"nmt-{secrets.token_hex(4)}")
        run("ip", "netns", "add", namespace.name)
        self._cleanup.callback(subprocess.run, ["ip", "netns", "del", namespace.name], check=False)
        namespace.set("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        namespace.run("ip", "link", "set", "lo", "up")
        return namespace

    def veth(self, left: Namespace, right: Namespace) -> tuple[End, End]:
        """A pair, up, with addresses in 198.18.0.0/15. Neighbours are permanent: no ARP on the wire."""
        self._pairs += 1
        interface = f"veth{self._pairs - 1}"
        peer = ("peer", "name", interface, "netns", right.name)
        run("ip", "link", "add", interface, "netns", left.name, "type", "veth", *peer)
        ends = tuple(
            self._configure(namespace, interface, f"198.18.{self._pairs}.{host}")
            for host, namespace in enumerate((left, right), start=1)
        )
        for here, there in (ends, ends[::-1]):
            neighbour = (there.address, "lladdr", there.hardware_address, "dev", interface, "nud", "permanent")
            here.namespace.run("ip", "neigh", "replace", *neighbour)
        return ends

    @staticmethod
    def _configure(namespace: Namespace, interface: str, address: str) -> End:
        namespace.run("ip", "address", "add", f"{address}/24", "dev", interface)
        namespace.run("ip", "link", "set", interface, "up")
        (link,) = json.loads(namespace.run("ip", "-json", "link", "show", "dev", interface))
        return End(namespace, interface, link["ifindex"], address, link["address"])


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """One that everybody may enter: the agent, which is not root, has its spool there."""
    with tempfile.TemporaryDirectory(prefix="netmon-kernel-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def network() -> Iterator[Network]:
    """A testbed of this test's own, removed also when the test fails."""
    with ExitStack() as cleanup:
        yield Network(cleanup)


@pytest.fixture
def namespaces(network: Network) -> Callable[[], tuple[End, End]]:
    """A factory of pairs: each call makes two namespaces with a veth pair between them."""
    return lambda: network.veth(network.namespace(), network.namespace())
