# SPDX-License-Identifier: Apache-2.0
"""Which interfaces are meant by names, patterns and `physical`."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from netmon.errors import UnsupportedError
from netmon.kernel.probe.interfaces import InterfaceFacts

PHYSICAL = "physical"
_CLASS = Path("/sys/class/net")
_PATTERN = re.compile(r"[*?\[]")
_REPRESENTOR = re.compile(r"pf\d+(vf|sf)\d+$")  # phys_port_name of a switch port that leads to a virtual function


class Chosen(NamedTuple):
    """names: each once, in the order in which they were requested; remarks: what would mislead, a line each."""

    names: tuple[str, ...]
    remarks: tuple[str, ...]


def choose_interfaces(wanted: Sequence[str], there: Sequence[InterfaceFacts]) -> Chosen:
    """wanted: names, patterns such as `ens*f?np*`, and `physical`; there: the watchable ones.

    A pattern leaves the loopback out. `physical` means those with a device behind them, but neither virtual functions,
    nor switch ports that lead to them, nor the lower one of two that carry the same bytes. A plain name is taken as it
    is. Raises UnsupportedError for what matches nothing.
    """
    names: dict[str, None] = {}
    for each in wanted:
        names |= dict.fromkeys(_meant_by(each, there))
    return Chosen(tuple(names), tuple(_twice_counted(names, there)))


def _meant_by(wanted: str, there: Sequence[InterfaceFacts]) -> list[str]:
    known = [facts.name for facts in there]
    if wanted in known:
        return [wanted]
    if wanted == PHYSICAL:
        found = physical_interfaces(there)
    elif _PATTERN.search(wanted):
        found = [facts.name for facts in there if facts.kind != "loopback" and fnmatchcase(facts.name, wanted)]
    else:
        return [wanted]  # whoever describes it says what is wrong with it
    if not found:
        raise UnsupportedError(f"cannot watch {wanted!r}: no interface matches; there are {', '.join(sorted(known))}")
    return found


def physical_interfaces(there: Sequence[InterfaceFacts], sys_class: Path = _CLASS) -> list[str]:
    """The names of those that `physical` means. sys_class: where the kernel describes them."""
    real = [facts for facts in there if _has_its_own_wire(sys_class / facts.name)]
    names = {facts.name for facts in real}
    return [facts.name for facts in real if not names.intersection(facts.uppers)]


def _has_its_own_wire(index: Path) -> bool:
    if not (index / "device").exists() or (index / "device/physfn").exists():
        return False
    try:
        port = (index / "phys_port_name").read_text().strip()
    except OSError:  # most drivers have no name for it
        return True
    return not _REPRESENTOR.search(port)


def _twice_counted(names: "dict[str, None]", there: Sequence[InterfaceFacts]) -> list[str]:
    pairs = [(upper, facts.name) for facts in there if facts.name in names for upper in facts.uppers if upper in names]
    return [
        f"{upper} and {lower} carry the same bytes and are both watched: they count twice" for upper, lower in pairs
    ]
