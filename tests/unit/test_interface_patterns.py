# SPDX-License-Identifier: Apache-2.0
"""Which interfaces are meant by names, patterns and `physical`."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_doctor import NIC

from netmon.errors import UnsupportedError
from netmon.kernel.interfaces import choose_interfaces, physical_interfaces


def there(*names: str):
    kinds = {"lo": "loopback", "bond0": "bond"}
    return [
        replace(NIC, index=index, name=name, kind=kinds.get(name, "")) for index, name in enumerate(["lo", *names], 1)
    ]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["eth0"], ("eth0",)),
        (["eth*"], ("eth0", "eth1")),
        (["ens*f?np*"], ("ens1f0np0", "ens1f1np1")),
        (["eth1", "eth*", "eth1"], ("eth1", "eth0")),
        (["eth[1-9]", "ens1f0np0"], ("eth1", "ens1f0np0")),
        (["*"], ("eth0", "eth1", "ens1f0np0", "ens1f1np1")),  # not the loopback
        (["lo"], ("lo",)),
        (["eth9"], ("eth9",)),  # whoever describes it says that it is not there
    ],
)
def test_what_is_meant(wanted, names):
    chosen = choose_interfaces(wanted, there("eth0", "eth1", "ens1f0np0", "ens1f1np1"))
    assert chosen == (names, ())


@pytest.mark.parametrize("wanted", ["wlan*", "ETH*", "wire[2-9]", "physical"])
def test_what_matches_nothing_is_said_with_what_there_is(wanted):
    with pytest.raises(UnsupportedError) as caught:
        choose_interfaces(["wire0", wanted], there("wire0"))
    assert str(caught.value) == f"cannot watch '{wanted}': no interface matches; there are lo, wire0"


def test_a_bond_and_its_member_are_said_to_count_twice():
    lo, eth0, eth1, bond0 = there("eth0", "eth1", "bond0")
    eth0 = replace(eth0, uppers=("bond0",))
    chosen = choose_interfaces(["*"], [lo, eth0, eth1, bond0])
    assert chosen.remarks == ("bond0 and eth0 carry the same bytes and are both watched: they count twice",)
    assert choose_interfaces(["eth*"], [lo, eth0, eth1, bond0]).remarks == ()


def test_an_interface_that_is_called_physical_is_that_one():
    assert choose_interfaces(["physical"], there("physical")).names == ("physical",)


def test_physical_leaves_out_what_has_no_wire_of_its_own(tmp_path: Path):
    for name, inside in {
        "eth0": {"device/vendor": ""},
        "eth1": {"device/vendor": "", "phys_port_name": "p1"},
        "virtual": {"device/vendor": "", "device/physfn/vendor": ""},
        "port": {"device/vendor": "", "phys_port_name": "pf0vf3"},
        "accelerated": {"device/vendor": ""},
        "member": {"device/vendor": ""},
        "bond0": {"ifindex": "7"},
    }.items():
        for file, text in inside.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
    facts = there("eth0", "eth1", "virtual", "port", "accelerated", "member", "bond0")
    uppers = {"accelerated": ("eth0",), "member": ("bond0",)}
    facts = [replace(each, uppers=uppers.get(each.name, ())) for each in facts]
    assert physical_interfaces(facts, tmp_path) == ["eth0", "eth1", "member"]
