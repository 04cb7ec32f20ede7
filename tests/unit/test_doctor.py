# SPDX-License-Identifier: Apache-2.0
"""What doctor concludes from what it found: the hook, the remarks, the verdict."""

import json
from dataclasses import replace

import pytest

from netmon.commands import doctor
from netmon.errors import UnsupportedError
from netmon.kernel.probe import Check, InterfaceFacts, Interfaces, Status, choose_hook

NIC = InterfaceFacts(
    index=2,
    name="eth0",
    kind="",
    driver="mlx5_core",
    mtu=9000,
    up=True,
    capacity_bps=100_000_000_000,
    gro=True,
    tso=True,
    uppers=(),
    xdp_program=0,
    xdp_name="",
    rdma=(),
)
VETH = replace(NIC, name="veth0", kind="veth", driver="veth", capacity_bps=0)
TCX = Check("tcx", Status.OK, "works")


@pytest.mark.parametrize("facts", [NIC, VETH, replace(NIC, xdp_program=17)])
@pytest.mark.parametrize("wanted", ["auto", "tc"])
def test_xdp_is_never_chosen_unasked(facts, wanted):
    assert choose_hook(facts, tcx=True, wanted=wanted)[:2] == ("tcx", "tcx")
    assert choose_hook(facts, tcx=False, wanted=wanted)[:2] == ("clsact", "clsact")


def test_xdp_sees_only_what_arrives():
    choice = choose_hook(NIC, tcx=True, wanted="xdp")
    assert choice[:2] == ("xdp", "tcx")
    assert "mlx5_core runs it natively" in choice.reason


def test_xdp_on_veth_comes_with_its_price():
    choice = choose_hook(VETH, tcx=False, wanted="xdp")
    assert choice[:2] == ("xdp", "clsact")
    assert "undoes GRO" in choice.reason


def test_xdp_on_an_unknown_driver_is_generic():
    choice = choose_hook(replace(NIC, driver="e1000"), tcx=True, wanted="xdp")
    assert choice.rx == "xdpgeneric"
    assert "e1000" in choice.reason


def test_a_taken_xdp_slot_names_its_holder():
    with pytest.raises(UnsupportedError) as caught:
        choose_hook(replace(NIC, xdp_program=17, xdp_name="xdp_filter"), tcx=True, wanted="xdp")
    expected = "cannot attach to eth0: XDP slot taken by program 17 (xdp_filter); use --hook tc"
    assert str(caught.value) == expected


def test_remarks_name_what_would_mislead():
    facts = replace(NIC, uppers=("bond0",), xdp_program=17, rdma=("mlx5_0",), capacity_bps=0)
    assert doctor.remarks(facts) == [
        "bond0 on top carries the same bytes: watch either, not both",
        "GRO: a received super-packet of up to 64 KB has one time stamp",
        "XDP program 17 (unnamed) comes first: what it drops or redirects is not seen",
        "RDMA device mlx5_0: its traffic is not attributed to flows",
        "speed unknown: give --capacity",
    ]
    assert doctor.remarks(replace(NIC, gro=False)) == []


def test_verdict_is_one_line_of_all_that_is_missing():
    checks = [
        TCX,
        Check("bcc", Status.MISSING, "cannot be imported", "install it"),
        Check("clock source", Status.LIMITED, "hpet", "look"),
        Check("ring buffer", Status.MISSING, "Invalid argument", "newer kernel"),
    ]
    line = doctor.what_is_missing(checks)
    assert "\n" not in line
    assert "bcc: cannot be imported; install it · ring buffer: Invalid argument; newer kernel" in line
    assert doctor.what_is_missing([TCX]) == ""


def test_document_is_json():
    interfaces = Interfaces((NIC, VETH), ("cannot watch tun0: not an Ethernet interface (type 65534)",))
    document = json.loads(json.dumps(doctor.document([TCX], interfaces)))
    assert document["ok"] is True
    assert document["checks"] == [{"name": "tcx", "status": "ok", "detail": "works", "advice": ""}]
    assert [(each["name"], each["hook"]["rx"]) for each in document["interfaces"]] == [
        ("eth0", "tcx"),
        ("veth0", "tcx"),
    ]
    assert len(document["refused"]) == 1


def test_hook_is_unknown_where_tcx_could_not_be_tried():
    unprivileged = [Check("tcx", Status.UNKNOWN, "not permitted to try")]
    assert doctor.document(unprivileged, Interfaces((NIC,), ()))["interfaces"][0]["hook"] is None


def test_both_tables_are_drawn(capsys):
    checks = [TCX, Check("bcc", Status.MISSING, "cannot be imported: [Errno 2]", "install it")]
    doctor.draw(checks, Interfaces((NIC, VETH), ()))
    shown = capsys.readouterr().out
    for text in (
        "cannot be imported: [Errno 2]",
        "→ install it",
        "mlx5_core",
        "100 Gbit/s",
        "tcx: keeps the interface's",
    ):
        assert text in shown
