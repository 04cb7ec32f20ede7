# SPDX-License-Identifier: Apache-2.0
"""Doctor on this machine, and on interfaces that were made for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netmon.kernel import bpf_calls, interfaces
from netmon.kernel.interfaces import interface_facts, xdp_support
from netmon.kernel.machine import Status, machine_checks

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
DOCTOR = """
import argparse, sys
from netmon.commands import doctor
parser = argparse.ArgumentParser()
doctor.arguments(parser)
sys.exit(doctor.run(parser.parse_args(sys.argv[1:])))
"""
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
HOLD_XDP = """
import struct, sys
from netmon.kernel import bpf_calls
from netmon.kernel.interfaces import interface_facts
XDP, PASS = 6, struct.pack("<BBhi", 0xb7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
link = bpf_calls.link_create(bpf_calls._load(XDP, PASS), int(sys.argv[1]), bpf_calls.XDP)
print([facts.xdp_program > 0 for facts in interface_facts().watchable])
"""
HOLD_TCX = """
import json, sys
from dataclasses import asdict
from netmon.kernel import bpf_calls
from netmon.kernel.interfaces import interface_facts
BEFORE_ALL, SCHED_CLS, index = 1 << 3, 3, int(sys.argv[1])
def put(name, hook):
    return bpf_calls.link_create(bpf_calls._load(SCHED_CLS, bpf_calls._RETURN_MINUS_ONE, name), index, hook, BEFORE_ALL)
links = [put(b"second", bpf_calls.TCX_INGRESS), put(b"first", bpf_calls.TCX_INGRESS), put(b"", bpf_calls.TCX_EGRESS)]
(facts,) = [facts for facts in interface_facts().watchable if facts.index == index]
print(json.dumps(asdict(facts)))
"""


def doctor_command(*options: str) -> list[str]:
    return [sys.executable, "-c", DOCTOR, *options]


def test_this_machine_can_run_netmon():
    assert [check for check in machine_checks() if check.status is Status.MISSING] == []


def test_probing_leaves_nothing_open():
    before = os.listdir("/proc/self/fd")
    machine_checks()
    bpf_calls.has_tcx()
    interface_facts()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_interfaces_of_a_namespace(namespaces):
    left, _ = namespaces()
    left.namespace.run("ip", "link", "add", "bridge0", "type", "bridge")
    left.namespace.run("ip", "link", "set", left.interface, "master", "bridge0")
    command = left.namespace.inside(*doctor_command("--json"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["ok"] is True
    found = {facts["name"]: facts for facts in document["interfaces"]}
    assert set(found) == {"lo", "bridge0", left.interface}
    veth = found[left.interface]
    assert (veth["kind"], veth["mtu"], veth["uppers"], veth["xdp_program"]) == ("veth", 1500, ["bridge0"], 0)
    assert (veth["lro"], veth["tcx_rx"] or [], veth["tcx_tx"] or []) == (False, [], [])
    assert veth["hook"]["rx"] in ("tcx", "clsact")
    assert any("watch either, not both" in remark for remark in veth["remarks"])


def test_who_holds_the_xdp_slot(namespaces):
    left, _ = namespaces()
    command = left.namespace.inside(sys.executable, "-c", HOLD_XDP, str(left.index))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[False, True]"  # lo, veth


def test_who_is_on_the_tcx_chain(namespaces):
    if not bpf_calls.has_tcx():
        pytest.skip("this kernel has no tcx")
    left, _ = namespaces()
    command = left.namespace.inside(sys.executable, "-c", HOLD_TCX, str(left.index))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [program["name"] for program in facts["tcx_rx"]] == ["first", "second"]
    assert [program["name"] for program in facts["tcx_tx"]] == [""]
    assert all(program["id"] > 0 for program in facts["tcx_rx"] + facts["tcx_tx"])


def test_what_the_kernel_says_of_xdp(namespaces):
    if not xdp_support():
        pytest.skip("this kernel does not tell what its drivers do with XDP programs")
    left, _ = namespaces()
    left.namespace.run("ip", "link", "add", "bridge0", "type", "bridge")
    command = left.namespace.inside(*doctor_command("--json"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = {facts["name"]: facts["xdp"] for facts in json.loads(done.stdout)["interfaces"]}
    assert found[left.interface] == {"native": True, "offload": False, "fragments": True}
    assert found["lo"] == found["bridge0"] == {"native": False, "offload": False, "fragments": False}


def test_a_kernel_that_does_not_tell_of_xdp(monkeypatch, capfd):
    monkeypatch.setattr(interfaces, "_FAMILY", "netmon-absent")
    assert xdp_support() == {}
    assert capfd.readouterr() == ("", "")


def test_without_privilege_it_says_so_in_one_line():
    done = subprocess.run(
        [*WITHOUT_CAPABILITIES, *doctor_command()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("netmon agent cannot run on this machine: privilege: without CAP_NET_ADMIN")
    assert done.stderr.count("\n") == 1
