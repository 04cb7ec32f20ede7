# SPDX-License-Identifier: Apache-2.0
"""What doctor concludes from what it found: the hook, the remarks, the verdict."""

import json
from dataclasses import replace

import pytest

from netmon.commands import doctor
from netmon.kernel.interfaces import InterfaceFacts, Interfaces, Program, XdpSupport, choose_hook, remarks
from netmon.kernel.machine import Check, Status

NATIVE = XdpSupport(native=True, offload=False, fragments=True)
GENERIC = XdpSupport(native=False, offload=False, fragments=False)
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
    lro=False,
    uppers=(),
    xdp_program=0,
    xdp_name="",
    xdp=NATIVE,
    tcx_rx=(),
    tcx_tx=(),
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
    assert choice.reason == "requested; mlx5_core runs it natively, says the kernel"


def test_xdp_on_veth_comes_with_its_price():
    choice = choose_hook(VETH, tcx=False, wanted="xdp")
    assert choice[:2] == ("xdp", "clsact")
    assert "undoes GRO" in choice.reason


@pytest.mark.parametrize(
    ("driver", "xdp", "rx", "reason"),
    [
        ("virtio_net", NATIVE, "xdp", "virtio_net runs it natively, says the kernel"),
        ("mlx5_core", GENERIC, "xdpgeneric", "mlx5_core does not run it natively, says the kernel"),
        ("mlx5_core", None, "xdp", "mlx5_core runs it natively"),
        ("e1000", None, "xdpgeneric", "e1000 is not known to run it natively"),
    ],
)
def test_the_kernel_is_believed_before_the_list_of_drivers(driver, xdp, rx, reason):
    choice = choose_hook(replace(NIC, driver=driver, xdp=xdp), tcx=True, wanted="xdp")
    assert (choice.rx, choice.reason) == (rx, f"requested; {reason}")


def test_a_taken_xdp_slot_stays_its_holders_and_tc_is_used():
    choice = choose_hook(replace(NIC, xdp_program=17, xdp_name="xdp_filter"), tcx=True, wanted="xdp")
    assert choice == ("tcx", "tcx", "the XDP slot is taken by program 17 (xdp_filter)")


def test_remarks_name_what_would_mislead():
    facts = replace(NIC, uppers=("bond0",), xdp_program=17, rdma=("mlx5_0",), capacity_bps=0)
    assert remarks(facts) == [
        "bond0 on top carries the same bytes: watch either, not both",
        "GRO: a received super-packet of up to 64 KB has one time stamp",
        "XDP program 17 (unnamed) comes first: what it drops or redirects is not seen",
        "XDP: native, also with frames in fragments",
        "RDMA device mlx5_0: its traffic is not attributed to flows",
        "speed unknown: give --capacity",
    ]
    assert remarks(replace(NIC, kind="dummy", gro=False)) == []


@pytest.mark.parametrize(
    ("xdp", "remark"),
    [
        (None, "XDP: unknown (Linux 6.3 and later report it)"),
        (GENERIC, "XDP: generic only, after the sk_buff is built: nothing is gained over tc"),
        (
            replace(NATIVE, fragments=False),
            "XDP: native, no fragments: a frame has to fit into a page (4 KiB: an MTU of about 3.5 kB)",
        ),
    ],
)
def test_remark_on_xdp(xdp, remark):
    assert remarks(replace(NIC, gro=False, xdp=xdp)) == [remark]
    assert not any(line.startswith("XDP") for line in remarks(replace(VETH, xdp=xdp)))


def test_remark_on_lro():
    expected = (
        "LRO on: the NIC merges packets before any hook, one time stamp for many; ethtool -K eth0 lro off ends that"
    )
    assert expected in remarks(replace(NIC, lro=True))
    assert not any(line.startswith("LRO") for facts in (NIC, replace(NIC, lro=None)) for line in remarks(facts))


@pytest.mark.parametrize(
    ("names", "remark"),
    [
        (["cil_from_netdev", ""], "tcx in: cil_from_netdev, then program 2; the meter goes first"),
        (["meter_tc_ingres", "cil_from_netdev"], "tcx in: meter_tc_ingres, then cil_from_netdev"),
        (
            ["acl", "meter_tc_ingres"],
            "tcx in: acl, then meter_tc_ingres: what is dropped or redirected before the meter is not seen",
        ),
    ],
)
def test_remark_on_the_tcx_chain(names, remark):
    chain = tuple(Program(id_, name) for id_, name in enumerate(names, start=1))
    assert remark in remarks(replace(NIC, tcx_rx=chain))
    assert remark.replace("tcx in", "tcx out") in remarks(replace(NIC, tcx_tx=chain))
    assert not any(line.startswith("tcx") for line in remarks(replace(NIC, tcx_rx=None, tcx_tx=())))


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
    nic, veth = replace(NIC, tcx_rx=(Program(7, "acl"),)), replace(VETH, xdp=None)
    interfaces = Interfaces((nic, veth), ("cannot watch tun0: not an Ethernet interface (type 65534)",))
    document = json.loads(json.dumps(doctor.document([TCX], interfaces)))
    assert document["ok"] is True
    assert document["checks"] == [{"name": "tcx", "status": "ok", "detail": "works", "advice": ""}]
    assert [(each["name"], each["hook"]["rx"]) for each in document["interfaces"]] == [
        ("eth0", "tcx"),
        ("veth0", "tcx"),
    ]
    assert document["interfaces"][0]["xdp"] == {"native": True, "offload": False, "fragments": True}
    assert document["interfaces"][0]["tcx_rx"] == [{"id": 7, "name": "acl"}]
    assert document["interfaces"][1]["xdp"] is None
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
