# SPDX-License-Identifier: Apache-2.0
"""A library that stands in for libnccl.so.2 where there is no GPU, in different versions of its structures; and for
libcudart."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).parent / "trainers" / "nccl.c"
NCCL, CUDART = "libnccl.so.2", "libcudart.so.12"

FLAGS = ("-g", "-O1", "-fno-ipa-icf", "-fno-ipa-cp", "-fno-ipa-ra", "-pthread")
"""Of the compiler: what is hidden stays a function of its own."""

_SUB = (
    "struct ncclProxyConnection *connection",
    "int channelId",
    "int nsteps",
    "size_t transSize",
    "void *requests[8]",
)
_ARGS = ("int nsubs", "uint64_t opCount", "int sliceSteps", "uint8_t pattern", "uint8_t coll", "uint8_t protocol")
_CONNECTION = ("int send", "int transport", "void *transportResources")
_RESOURCES = ("char map[1400]", "int tpRank", "int tpLocalRank", "int tpRemoteRank", "int netDev")
_STATES = (
    *("SendGPUWait = 8", "SendWait = 9", "RecvWait = 10", "RecvFlushWait = 11", "RecvGPUWait = 12"),
    "SendPeerWait_v4 = 20",
)
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv")
_PATTERNS = ("Ring", "RingTwice", "PipelineFrom", "PipelineTo", "TreeUp", "TreeDown", "TreeUpDown")


@dataclass(frozen=True)
class Version:
    """How the structures lie. turned: fields in the reverse order, with others between them."""

    turned: bool = False
    total: bool = False  # subs keep the sum of what they have moved
    subs: int = 64
    states: Sequence[str] = _STATES
    replaced: tuple[str, str] = ("", "")  # in the header

    def header(self) -> str:
        """What layout.h is."""
        enums = "".join(
            f"typedef enum {{ {', '.join(prefix + name for name in names)} }} {type_};\n"
            for type_, prefix, names in (
                ("ncclProfilerEventState_t", "ncclProfilerProxyStep", self.states),
                ("ncclFunc_t", "ncclFunc", _FUNCTIONS),
                ("ncclPattern_t", "ncclPattern", _PATTERNS),
            )
        )
        used = "static ncclFunc_t function __attribute__((used)); static ncclPattern_t pattern __attribute__((used));\n"
        structs = [
            self._struct("ncclProxyConnection", _CONNECTION),
            self._struct("sendNetResources", _RESOURCES),
            self._struct("recvNetResources", ("void *netListenComm", *_RESOURCES)),
            self._struct("ncclProxySubArgs", _SUB),
            self._struct("ncclProxyArgs", _ARGS, f"struct ncclProxySubArgs subs[{self.subs}]"),
        ]
        text = enums + used + "struct ncclProxyConnection;\n" + "\n".join(structs)
        return text.replace(*self.replaced) if self.replaced[0] else text

    def _struct(self, name: str, fields: Sequence[str], first: str = "") -> str:
        placed = list(fields)
        if self.turned:
            placed = [f for number, field in enumerate(reversed(fields)) for f in (f"long moved{number}", field)]
        lines = "".join(f"\t{field};\n" for field in ([first] if first else []) + placed)
        return f"struct {name} {{\n{lines}}};\n"


def build(folder: Path, version: Version, name: str = NCCL, *options: str) -> Path:
    """The library. options: of the compiler, too."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    built = folder / name
    command = ["cc", *FLAGS, "-shared", "-fPIC", "-Wl,--build-id", *options, "-x", "c", "-o", str(built), "-"]
    subprocess.run(command, input=program_source(version), text=True, check=True)
    return built


def program_source(version: Version) -> str:
    """In C, all of it."""
    total = "#define TOTAL\n" if version.total else ""
    return total + _SOURCE.read_text().replace('#include "layout.h"\n', version.header())
