# SPDX-License-Identifier: Apache-2.0
"""The machine is suspended and resumed: it is said once, counted, and no row is at a time at which nothing was sent.

Two ways: `core` is the kernel's own test of a suspend to memory, which stops everything (processes, devices, the other
CPU, its clock) but does not ask the firmware to cut the power; `none` is the whole of it, down to the firmware, from
which the power button wakes the machine up.
"""

import json

import numpy as np
import pandas as pd
import pytest
from guest import BOOTS_S, Guest
from guest_services import Here, configure, pid_of, says, works

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

ASLEEP_S, NEAR_S = 60, 5  # the machine's own clock is set to whole seconds when it wakes
SENDS = """
import json, socket, sys, time
sender, sent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), []
try:
    while not open("/tmp/enough").read():
        sender.sendto(b"x" * 1000, ("127.0.0.1", 7777))
        sent.append(time.clock_gettime(time.CLOCK_MONOTONIC))
        time.sleep(0.05)
finally:
    print(json.dumps(sent), file=open("/tmp/sent", "w"))
"""
SLEPT = "python3 -c 'import time; print(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())'"


def suspend(guest: Guest, pm_test: str) -> float:
    """For how long its kernel says that it was suspended, s. pm_test: "core", or "none" for all of it."""
    before = float(guest.run(SLEPT))
    guest.run(f"echo {ASLEEP_S} >/sys/module/suspend/parameters/pm_test_delay; echo {pm_test} >/sys/power/pm_test")
    guest.away("echo mem >/sys/power/state", ASLEEP_S + 10, "" if pm_test == "core" else "system_wakeup")
    return float(guest.run(SLEPT)) - before


@pytest.mark.parametrize("pm_test", ["core", "none"])
def test_a_suspended_machine_says_so_and_goes_on(guest: Guest, here: Here, pm_test: str):
    configure(guest, here.port)
    guest.run("systemctl start netmon-agent", BOOTS_S)
    works(guest)
    pid = pid_of(guest, "agent")
    guest.write("/tmp/sends.py", SENDS)
    guest.run(": >/tmp/enough; rm -f /tmp/sent")
    guest.begin("python3 /tmp/sends.py")
    works(guest)
    asleep_s = suspend(guest, pm_test)
    print(f"{pm_test}: suspended for {asleep_s:.1f} s, says the kernel")
    assert asleep_s > ASLEEP_S / 2
    says(guest, "agent", "this host was suspended for", 1)
    works(guest)
    guest.run("echo enough >/tmp/enough")
    guest.wait_for("[ -s /tmp/sent ]")
    works(guest)
    offset = json.loads(guest.run("python3 -c 'import time; print(time.time() - time.monotonic())'"))
    sent = np.array(json.loads(guest.run("cat /tmp/sent")))
    suspended = guest.metrics()["netmon_agent_suspended_seconds_total"]
    said = guest.journal("netmon-agent")
    print(said)
    assert pid_of(guest, "agent") == pid
    guest.run("systemctl stop netmon-agent", BOOTS_S)
    here.end()
    print(f"suspended for {suspended:.1f} s, says the agent; {len(sent)} datagrams")
    assert said.count("this host was suspended for") == 1
    assert abs(suspended - asleep_s) < 1
    flows = pd.read_parquet(here.data / "flows")
    ours = flows[(flows["dst_port"] == 7777) & (flows["protocol"] == 17) & (flows["direction"] == "tx")]
    rows = pd.read_parquet(here.data / "buckets")
    rows = rows[rows["flow_id"].isin(ours["flow_id"]) & (rows["direction"] == "tx")].sort_values("bucket_start_ns")
    assert rows["packets"].sum() == len(sent)
    # Each datagram's own time, by the guest's clock as it was before and after: what slept is no row's time.
    apart, own = np.diff(rows["bucket_start_ns"].to_numpy() / 1e9), np.diff(sent)
    print(f"at most {np.sort(apart)[-3:]} s between rows, {np.sort(own)[-3:]} s between datagrams by their own clock")
    assert abs(apart.max() - asleep_s) < 2 * NEAR_S + own.max()
    assert (np.sort(apart)[:-1] < ASLEEP_S / 2).all()
    assert abs(rows["bucket_start_ns"].max() / 1e9 - (sent[-1] + offset)) < NEAR_S
    assert (apart >= 0).all()
