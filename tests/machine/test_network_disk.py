# SPDX-License-Identifier: Apache-2.0
"""The agent's spool on NFS, by a real server that goes away and comes back; mounts that wait for ever and that fail."""

import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, batches, configure, pid_of, says, works
from waiting import wait_for

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

UNIT = """[Service]
User=netmon-agent
ReadWritePaths=/spool
"""
TRAINS = """
import sys
sys.path[:0] = ["/usr/lib/netmon"]
import time
from netmon.training import Steps
steps, longest = Steps(job="train"), 0.0
for number in range(100):
    began = time.monotonic()
    with steps.step():
        longest = max(longest, time.monotonic() - began)
    longest = max(longest, time.monotonic() - began)
    time.sleep(0.1)
print("100 steps; the longest was", round(longest * 1000, 1), "ms")
"""


@pytest.fixture
def on_nfs(guest: Guest, here: Here) -> None:
    guest.run("id netmon-agent 2>/dev/null || useradd --system netmon-agent")
    guest.run("mkdir -p /srv/spool /spool && chown netmon-agent /srv/spool && chmod 700 /srv/spool")
    guest.run("systemctl start nfs-server", BOOTS_S)
    guest.write("/etc/systemd/system/netmon-agent.service.d/test.conf", UNIT)
    guest.write("/tmp/trains.py", TRAINS)
    configure(guest, here.port, agent='spool = "/spool/spool"\nrecord = "off"\n')


@pytest.mark.parametrize("options", ["hard", "soft,timeo=20,retrans=1"])
def test_a_server_that_goes_away_holds_nobody_up(guest: Guest, here: Here, on_nfs: None, options: str):
    guest.run(f"mount -t nfs -o vers=4.2,{options} localhost:/ /spool && systemctl daemon-reload", BOOTS_S)
    guest.run("systemctl start netmon-agent", BOOTS_S)
    works(guest)
    pid = pid_of(guest, "agent")
    assert guest.run("ls /srv/spool").count(".spool") >= 1
    guest.run("systemctl stop nfs-server", BOOTS_S)
    says(guest, "agent", "batches wait in memory", 1)
    here.end()
    works(guest)  # batches are made, and wait
    here.start()  # a new connection does not wait for the disk
    made = batches(guest)
    wait_for(lambda: guest.metrics()["netmon_agent_batches_acknowledged_total"] >= made, BOOTS_S)
    here.end()
    print(guest.run("runuser -u nobody -- python3 /tmp/trains.py"))
    works(guest)
    guest.run("systemctl start nfs-server", BOOTS_S)
    says(guest, "agent", "takes batches again", 1)
    here.start()
    works(guest)
    made = batches(guest)
    wait_for(lambda: guest.metrics()["netmon_agent_batches_acknowledged_total"] >= made, BOOTS_S)
    told = guest.metrics()
    print({name: value for name, value in told.items() if "spool" in name or "still" in name or "given_up" in name})
    said = guest.journal("netmon-agent")
    print(said)
    assert pid_of(guest, "agent") == pid
    assert told["netmon_agent_batches_given_up_total"] == 0
    assert sum(value for name, value in told.items() if name.startswith("netmon_agent_link_lost_bytes")) == 0
    guest.run("systemctl stop netmon-agent; umount /spool", BOOTS_S)
    here.end()
    assert "never arrived" not in here.said()
    assert max(here.batches().values()) >= made
