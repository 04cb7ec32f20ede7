# SPDX-License-Identifier: Apache-2.0
"""The disk of a service fills, fails as devices do, becomes read-only, and is mounted anew: nobody starts it again."""

from pathlib import Path

import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, acknowledged, batches, configure, pid_of, says, works
from sent_agent import Sent, check_whole
from waiting import wait_for

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

SECTORS = 64 << 11
TALKS = """
import itertools, socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for port in itertools.cycle(range(20000, 60000)):
    sender.sendto(b"x" * 100, ("127.0.0.1", port))
    if not port % 20:
        time.sleep(0.2)
"""
"""New flows all the time: what a file has room for is written also where its file system takes nothing more."""


@pytest.fixture(scope="module")
def made(machine: Guest) -> None:
    """A disk for each service, below a device that can be made to fail."""
    for device, name in (("vdb", "agent"), ("vdc", "collector")):
        machine.run(f"dmsetup create {name} --table '0 {SECTORS} linear /dev/{device} 0'")
        machine.run(f"mkfs.ext4 -q /dev/mapper/{name}; mkdir -p /disk/{name}")
        machine.run(f"id netmon-{name} || useradd --system netmon-{name}")
        machine.run(f"mount -o errors=remount-ro /dev/mapper/{name} /disk/{name}")
        machine.run(f"install -d -o netmon-{name} -m 755 /disk/{name}/own")


@pytest.fixture
def mounted(guest: Guest, made: None) -> None:
    """Each service may write to its disk."""
    for name in ("agent", "collector"):
        unit = f"[Service]\nUser=netmon-{name}\nReadWritePaths=/disk\n"
        guest.write(f"/etc/systemd/system/netmon-{name}.service.d/test.conf", unit)
    guest.run("systemctl daemon-reload")


def table(guest: Guest, name: str, target: str) -> None:
    """What lies below a file system; what waits for it fails or is done."""
    guest.run(f"dmsetup load {name} --table '0 {SECTORS} {target}' && dmsetup suspend --noflush --nolockfs {name}")
    guest.run(f"dmsetup resume {name}")


def fill(guest: Guest, name: str) -> None:
    guest.run(f"dd if=/dev/zero of=/disk/{name}/full bs=64k 2>/dev/null; sync", check=False)


def mount_anew(guest: Guest, name: str) -> None:
    """As an operator does, after looking it over; that cannot be as long as the service holds a file of it."""
    guest.run(f"umount -l /disk/{name}")
    guest.wait_for(f"e2fsck -fy /dev/mapper/{name} >/dev/null; [ $? -le 1 ]")
    guest.run(f"mount -o errors=remount-ro /dev/mapper/{name} /disk/{name}")


def test_an_agent_s_disk(guest: Guest, here: Here, mounted: None):
    configure(guest, here.port, agent='spool = "/disk/agent/own/spool"\nrecord = "off"\n')
    guest.run("systemctl start netmon-agent", BOOTS_S)
    guest.write("/tmp/talks.py", TALKS)
    guest.begin("timeout 3600 python3 /tmp/talks.py")
    works(guest)
    pid = pid_of(guest, "agent")

    here.end()
    fill(guest, "agent")
    says(guest, "agent", "batches wait in memory", 1)
    works(guest)
    guest.run("rm /disk/agent/full; sync")  # or it is there again when the journal is lost
    says(guest, "agent", "takes batches again", 1)
    table(guest, "agent", "error")
    says(guest, "agent", "batches wait in memory", 2)
    works(guest)
    here.start()  # what waits is read from the page cache, or given up and counted
    table(guest, "agent", "linear /dev/vdb 0")
    mount_anew(guest, "agent")
    works(guest)
    says(guest, "agent", "takes batches again", 2)
    guest.run("pkill -f talks.py", check=False)
    made = batches(guest)
    wait_for(lambda: guest.metrics()["netmon_agent_batches_acknowledged_total"] >= made, BOOTS_S)
    told = guest.metrics()
    print({name: value for name, value in told.items() if "given_up" in name or "lost" in name})
    print(guest.journal("netmon-agent"))
    assert pid_of(guest, "agent") == pid
    guest.run("systemctl stop netmon-agent", BOOTS_S)


def test_a_collector_s_disk(guest: Guest, mounted: None, tmp_path: Path):
    configure(guest, 9, collector="")
    guest.run("sed -i 's|/var/lib/netmon|/disk/collector/own/data|' /etc/netmon/collector.toml")
    guest.run("systemctl start netmon-collector", BOOTS_S)
    pid = pid_of(guest, "collector")
    sent = Sent(tmp_path / "spool", f"127.0.0.1:{guest.ports[9400]}")
    sent.start()

    try:
        sent.append(20)
        acknowledged(sent, 5)
        fill(guest, "collector")
        sent.append(20)
        says(guest, "collector", "cannot write to", 1)
        guest.run("rm /disk/collector/full; sync")
        says(guest, "collector", "takes rows again", 1)
        sent.append(20)
        acknowledged(sent, 45)
        table(guest, "collector", "error")
        sent.append(20)
        says(guest, "collector", "cannot write to", 2)
        table(guest, "collector", "linear /dev/vdc 0")
        mount_anew(guest, "collector")
        says(guest, "collector", "takes rows again", 2)
        sent.append(20)
        acknowledged(sent, 85)
    finally:
        print(guest.journal("netmon-collector"))
        sent.finish(600)
    assert pid_of(guest, "collector") == pid
    guest.run("systemctl stop netmon-collector", BOOTS_S)
    guest.fetch("/disk/collector/own/data", tmp_path / "data")
    check_whole(tmp_path / "data", sent)
