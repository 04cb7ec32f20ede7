# SPDX-License-Identifier: Apache-2.0
"""Where in a library NCCL's network proxy tells its operations and transfers, and how its structures lie in memory.

Read by a child, as netmon.kernel.training.symbols: anybody can map a library that is called like NCCL. Its own debug
information says how the structures lie, not a table of versions; what does not fit together is refused with the reason.

NCCL 2.27 and later keep the size of a sub's latest transfer, and call one function in more than one state of each. In
one of them a proxy calls it again and again, while the peer is not ready. So the calls are probed and not the function:
those in the proxy's own code that are made once a transfer. NCCL 2.23 to 2.26 keep the sum: it is read where they end.
"""

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from netmon.kernel.training.symbols import SYMTAB, Elf, confine, file_offset, find_functions, open_elf, say

if TYPE_CHECKING:
    import drgn

SECONDS = 4
"""Of processor time; NCCL 2.32, of 250 MB, takes a quarter of one."""

_DATA_BYTES = 512 << 20
_ADDRESS_BYTES = 4 << 30  # the library is mapped
_MOST_FUNCTION_BYTES = 64 << 10
_MOST_SITES = 16

_ARGUMENTS = "iP13ncclProxyArgs"
_QUEUED = tuple(
    f"_Z{len(name)}{name}{_ARGUMENTS}"
    for name in (
        "ncclProfilerStartProxyOpEvent",
        "ncclProfilerStartSendProxyOpEvent",
        "ncclProfilerStartRecvProxyOpEvent",
    )
)
_OVER = f"_Z28ncclProfilerStopProxyOpEvent{_ARGUMENTS}"
_ARRIVED = f"_Z30ncclProfilerStopProxyStepEvent{_ARGUMENTS}i"
_MOVED = f"_Z37ncclProfilerRecordProxyStepEventState{_ARGUMENTS}i24ncclProfilerEventState_t"
_OF_OPERATION = f"_Z35ncclProfilerRecordProxyOpEventState{_ARGUMENTS}"
_TOTAL = f"{_OF_OPERATION}im"
"""It is handed the sum of the transfers' sizes."""
_PROGRESS = tuple(f"_ZL17{way}ProxyProgressP14ncclProxyStateP13ncclProxyArgs" for way in ("send", "recv"))
_BEFORE = "_Z19ncclProfilingRecordP13ncclProxyArgsiii"

_STATES = {
    "sent": "ncclProfilerProxyStepSendWait",
    "awaited": "ncclProfilerProxyStepRecvWait",
    "received": "ncclProfilerProxyStepRecvFlushWait",
}
_SPINS = "ncclProfilerProxyStepSendPeerWait_v4"

COLLECTIVES = (
    *("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"),
    *("AlltoAll", "Scatter", "Gather", "AllGatherV", "PutSignal", "Signal", "WaitSignal"),
)
"""NCCL's names of functions; here each has its place, from 1."""
ALGORITHMS = {
    **{"Ring": 1, "RingTwice": 1, "PipelineFrom": 1, "PipelineTo": 1},
    **{"TreeUp": 2, "TreeDown": 2, "TreeUpDown": 2, "CollnetChain": 3, "CollnetDirect": 3},
    **{"Nvls": 4, "NvlsTree": 4, "PatUp": 5, "PatDown": 5, "Send": 6, "Recv": 6},
}
"""NCCL's names of patterns → ring, tree, collnet, nvls, pat, between two."""


MOST_STATE = 1 << 16
"""No state of a transfer has this number."""

# Machine code of x86-64: a call of what lies so far behind its end; a constant below 256 for the fourth argument.
_CALL, _FOURTH, _NEARBY_BYTES = b"\xe8", re.compile(rb"\xb9(.)\0\0\0", re.DOTALL), 48
# It looks whether there is a profiler: loads a pointer into a register that has no argument, tests it, jumps.
_LOOKS = re.compile(rb"(?:\x48\x8b[\x05\x0d]|\x4c\x8b[\x05\x0d\x15\x1d]).{4}[\x48\x4d]\x85.(?=[\x74\x75])", re.DOTALL)
_BEGINNING_BYTES = 16
_NOTE, _BUILD_ID, _MOST_NOTE_BYTES = 7, b"\3\0\0\0GNU\0", 4096
_ADDRESS = 0x1000000
_MOST_TYPEDEFS, _MOST_ENUMERATORS = 8, 256


class _Field(NamedTuple):
    struct: str
    member: str
    size: int


FIELDS = {
    "connection": _Field("ncclProxySubArgs", "connection", 8),
    "channel": _Field("ncclProxySubArgs", "channelId", 4),
    "steps": _Field("ncclProxySubArgs", "nsteps", 4),
    "size": _Field("ncclProxySubArgs", "transSize", 8),
    "operation": _Field("ncclProxyArgs", "opCount", 8),
    "slice_steps": _Field("ncclProxyArgs", "sliceSteps", 4),
    "collective": _Field("ncclProxyArgs", "coll", 1),
    "pattern": _Field("ncclProxyArgs", "pattern", 1),
    "protocol": _Field("ncclProxyArgs", "protocol", 1),
    "send": _Field("ncclProxyConnection", "send", 4),
    "resources": _Field("ncclProxyConnection", "transportResources", 8),
    "send_rank": _Field("sendNetResources", "tpRank", 4),
    "send_peer": _Field("sendNetResources", "tpRemoteRank", 4),
    "send_device": _Field("sendNetResources", "netDev", 4),
    "receive_rank": _Field("recvNetResources", "tpRank", 4),
    "receive_peer": _Field("recvNetResources", "tpRemoteRank", 4),
    "receive_device": _Field("recvNetResources", "netDev", 4),
}
"""Of netmon.records.TRANSFER_LAYOUT: where each is in NCCL's structures, and how many bytes it has to have."""

MOST_STRUCT_BYTES = 1 << 20
MOST_SUBS = 256


def main() -> None:
    """The child: the library on standard input, the answer on standard output."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with contextlib.suppress(ImportError):
        import drgn  # noqa: F401 - who is confined may not read where it is installed
    limits = (resource.RLIMIT_AS, _ADDRESS_BYTES), (resource.RLIMIT_DATA, _DATA_BYTES), (resource.RLIMIT_CPU, SECONDS)
    confine(limits)
    say(lambda: read_library(0))


def read_library(descriptor: int) -> dict[str, Any]:
    """What is to be probed, and how the structures lie. Raises OSError, and ValueError with the reason why not.

    `build`: the library's build id; `functions`: offsets and sizes of what is probed, as its table of symbols has them.
    Where there is debug information, too: `probes`, file offsets by program; `layout`, numbers of TRANSFER_LAYOUT;
    `collectives` and `algorithms`, NCCL's number → ours.
    """
    elf = open_elf(descriptor)
    functions = _functions(elf)
    if _OVER not in functions:
        if _BEFORE in functions:
            raise ValueError("NCCL before 2.23 does not keep the size of a transfer")
        raise ValueError("its proxy does not show its operations as that of NCCL 2.23 and later does")
    known = {"build": _build_id(elf), "functions": functions}
    program = _debug_information(descriptor)
    if program is None:
        return known
    total = any(name.startswith(_TOTAL) for name in functions)
    probes = {
        "nccl_queued": [_cheap(elf, place) for name in _QUEUED for place, _ in functions.get(name, ())],
        "nccl_over": [_cheap(elf, functions[_OVER][0][0])],
    }
    layout = _layout(program) | {"total": int(total), **dict.fromkeys(_STATES, MOST_STATE)}
    if not total:
        states = _enumerators(program, "ncclProfilerEventState_t")
        layout |= {name: states.get(state, MOST_STATE) for name, state in _STATES.items()}
        probes |= _calls(elf, functions, states)
        probes["nccl_arrived"] = [_cheap(elf, place) for place, _ in functions.get(_ARRIVED, ())]
    collectives = _numbers(program, "ncclFunc_t", "ncclFunc", {name: at for at, name in enumerate(COLLECTIVES, 1)})
    algorithms = _numbers(program, "ncclPattern_t", "ncclPattern", ALGORITHMS)
    return known | {"probes": probes, "layout": layout, "collectives": collectives, "algorithms": algorithms}


def _functions(elf: Elf) -> dict[str, list[tuple[int, int]]]:
    """Offset and size of each requested function; of those that progress, more than one has the same name."""
    rows, names = elf.symbols(SYMTAB)
    if not rows:
        raise ValueError("its local functions have no names: it is stripped")
    found: dict[str, list[tuple[int, int]]] = {}
    for name, value, length in find_functions(rows, names, (*_QUEUED, _OVER, _ARRIVED, _MOVED, *_PROGRESS, _BEFORE)):
        offset = file_offset(elf.segments, value)
        if offset >= 0:
            found.setdefault(name, []).append((offset, length))
    for name, _, _ in find_functions(rows, names, (_OF_OPERATION,), beginning=True):
        found.setdefault(name, [])
    if any(len(sites) > _MOST_SITES for sites in found.values()):
        raise ValueError("it has too many functions of one name")
    return found


def _build_id(elf: Elf) -> str:
    """Empty where it has none."""
    for kind, _, at, length, *_ in elf.sections:
        if kind == _NOTE and length <= _MOST_NOTE_BYTES:
            note = elf.read(at, length)
            if note[8:16] == _BUILD_ID:
                return note[16:].hex()
    return ""


def _cheap(elf: Elf, function: int) -> int:
    """Where in a function that begins at this offset a probe costs little, and still finds all arguments.

    The kernel does a jump's work itself; of a load it lets the processor take a single step, which is another trap: it
    takes longer by far, in a virtual machine ten times.
    """
    if os.uname().machine != "x86_64" or function + _BEGINNING_BYTES > elf.size:
        return function
    looks = _LOOKS.match(elf.read(function, _BEGINNING_BYTES))
    return function + looks.end() if looks else function


def _calls(elf: Elf, functions: dict[str, list[tuple[int, int]]], states: dict[str, int]) -> dict[str, list[int]]:
    """Offsets of the calls in which a proxy tells that a transfer is on its way or has come, and that one is awaited.

    Calls of different states may be one, to which the code jumps: those of other states are left out only where there
    are calls for what is looked for. A program looks at the state again.
    """
    if os.uname().machine != "x86_64":
        raise ValueError("its calls are known on x86-64 only")
    if len(functions.get(_MOVED, ())) != 1:
        raise ValueError("its proxy does not show its transfers")
    sent, awaited, received = (states.get(name) for name in _STATES.values())
    spins = states.get(_SPINS)
    sends, receives = (_states_of_calls(elf, functions, name) for name in _PROGRESS)
    if spins is not None:
        if spins not in sends.values():
            raise ValueError("it is unclear which call of its proxy spins")
        sends = {call: state for call, state in sends.items() if state not in (spins, None)}
    found = {
        "nccl_moved": _of_state(sends, sent) + _of_state(receives, received),
        "nccl_awaited": [call for call, state in receives.items() if state == awaited],
    }
    if len(found["nccl_moved"]) + len(found["nccl_awaited"]) > _MOST_SITES or not sends or not receives:
        raise ValueError("it is unclear where its proxy shows its transfers")
    return found


def _of_state(calls: dict[int, int | None], state: int | None) -> list[int]:
    """Those that may be in this state."""
    return [call for call, one in calls.items() if one in (state, None)] or list(calls)


def _states_of_calls(elf: Elf, functions: dict[str, list[tuple[int, int]]], name: str) -> dict[int, int | None]:
    """Offsets of the calls of _MOVED in functions of this name → the state that is put in place before, where seen."""
    ((target, _),) = functions[_MOVED]
    found: dict[int, int | None] = {}
    for begin, length in functions.get(name, ()):
        code = elf.read(begin, length, _MOST_FUNCTION_BYTES)
        found |= {begin + call: _state_before(code, call) for call in _calls_of(code, target - begin)}
    return found


def _calls_of(code: bytes, target: int) -> Iterator[int]:
    """Where in the code it calls what lies so far behind its beginning."""
    at = code.find(_CALL)
    while 0 <= at <= len(code) - 5:
        if at + 5 + int.from_bytes(code[at + 1 : at + 5], "little", signed=True) == target:
            yield at
        at = code.find(_CALL, at + 1)


def _state_before(code: bytes, call: int) -> int | None:
    """The constant that is put into the fourth argument last before a call; None: there is none nearby."""
    found = _FOURTH.findall(code, max(0, call - _NEARBY_BYTES), call)
    return found[-1][0] if found else None


def _debug_information(descriptor: int) -> "drgn.Program | None":
    """None where the library has none."""
    try:
        import drgn
    except ImportError:
        raise ValueError("drgn, which reads how its structures lie, is not installed (netmon[nccl])") from None
    program = drgn.Program()
    made = program.extra_module("libnccl", create=True)
    module: drgn.Module = made[0] if isinstance(made, tuple) else made
    module.address_ranges = [(_ADDRESS, _ADDRESS + (1 << 30))]
    try:
        module.try_file("libnccl", fd=os.dup(descriptor), force=True)
    except Exception as error:
        raise ValueError(f"its debug information cannot be read: {error}") from None
    return program if module.debug_file_status == drgn.ModuleFileStatus.HAVE else None


def _layout(program: "drgn.Program") -> dict[str, int]:
    """Offsets by the names of FIELDS, and how the subs of an operation lie in it."""
    structs = {name: _type(program, f"struct {name}") for name in {field.struct for field in FIELDS.values()}}
    taken: dict[str, list[range]] = {}
    layout = {}
    for name, field in FIELDS.items():
        struct = structs[field.struct]
        if not 0 < (struct.size or 0) <= MOST_STRUCT_BYTES:
            raise ValueError(f"its {field.struct} has {struct.size} bytes")
        offset, size = _member(struct, field.member)
        if size != field.size:
            raise ValueError(f"its {field.struct}.{field.member} has {size} bytes and not {field.size}")
        bytes_ = range(offset, offset + size)
        others = taken.setdefault(field.struct, [])
        if offset + size > struct.size or any(bytes_.start < one.stop and one.start < bytes_.stop for one in others):
            raise ValueError(f"its {field.struct}.{field.member} is beyond the structure, or within another field")
        others.append(bytes_)
        layout[name] = offset
    subs = _member_type(structs["ncclProxyArgs"], "subs")
    sub_bytes = structs["ncclProxySubArgs"].size or 0
    at, size = _member(structs["ncclProxyArgs"], "subs")
    if at != 0 or not 0 < (subs.length or 0) <= MOST_SUBS or size != sub_bytes * (subs.length or 0):
        raise ValueError("its operations do not begin with their subs")
    if any(one.start < size for one in taken["ncclProxyArgs"]):
        raise ValueError("its operations have fields within their subs")
    return layout | {"sub_bytes": sub_bytes, "subs": subs.length or 0}


def _type(program: "drgn.Program", name: str) -> "drgn.Type":
    """What it stands for. Raises ValueError."""
    try:
        found = program.type(name)
        for _ in range(_MOST_TYPEDEFS):
            if not hasattr(found, "type") or found.kind.name != "TYPEDEF":
                break
            found = found.type
    except Exception as error:
        raise ValueError(f"it has no {name}: {error}") from None
    return found


def _member_type(struct: "drgn.Type", name: str) -> "drgn.Type":
    try:
        found: drgn.Type = struct.member(name).type
    except Exception as error:
        raise ValueError(f"its {struct.tag} has no {name}: {error}") from None
    return found


def _member(struct: "drgn.Type", name: str) -> tuple[int, int]:
    """Offset and size in bytes."""
    import drgn

    type_ = _member_type(struct, name)
    member = struct.member(name)
    try:
        size = drgn.sizeof(type_)
    except Exception as error:
        raise ValueError(f"its {struct.tag}.{name} has no size: {error}") from None
    if member.bit_field_size is not None or member.bit_offset % 8:
        raise ValueError(f"its {struct.tag}.{name} is a part of a byte")
    return member.bit_offset // 8, size


def _enumerators(program: "drgn.Program", name: str) -> dict[str, int]:
    """Value by name; MOST_STATE at most."""
    enumerators = getattr(_type(program, name), "enumerators", None)
    if not enumerators:
        raise ValueError(f"its {name} has no values")
    return {one.name: one.value for one in enumerators[:_MOST_ENUMERATORS] if 0 <= one.value < MOST_STATE}


def _numbers(program: "drgn.Program", name: str, prefix: str, ours: dict[str, int]) -> dict[int, int]:
    """NCCL's numbers, below 32, → ours."""
    values = _enumerators(program, name).items()
    named = {value: ours.get(word.removeprefix(prefix), 0) for word, value in values}
    return {value: number for value, number in named.items() if value < 32 and number}
