# SPDX-License-Identifier: Apache-2.0
"""A library that stands in for libnccl.so.2, in several versions; as a program, a rank that uses it.

The rank: LIBRARY, then lines on standard input, each a JSON list of a call and its arguments. A line answers each.
"""

import ctypes
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "nccl"

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
        """Text of layout.h."""
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


def build(folder: Path, version: Version, name: str = "libnccl.so.2", *options: str) -> Path:
    """The library. options: of the compiler, too."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "layout.h").write_text(version.header())
    built = folder / name
    defines = ["-DTOTAL"] if version.total else []
    flags = ["-g", "-O1", "-shared", "-fPIC", "-fno-ipa-icf", "-fno-ipa-cp", "-fno-ipa-ra", "-Wl,--build-id", *defines]
    command = ["cc", *flags, *options, f"-I{folder}", "-o", built, SOURCES / "nccl.c"]
    subprocess.run(command, check=True)
    return built


class Rank:
    """The rank's own calls."""

    def __init__(self, library: str) -> None:
        self._nccl = ctypes.CDLL(library)
        self._nccl.stand_in_connect.restype = ctypes.c_void_p
        self._ends: list[ctypes.c_void_p] = []
        self._sockets: list[socket.socket] = []

    def listen(self, address: str, port: int, count: int) -> int:
        """Takes so many connections, each for an end that receives, in their order."""
        with socket.create_server((address, port), backlog=16) as server:
            print(json.dumps("listens"), flush=True)
            self._sockets += [server.accept()[0] for _ in range(count)]
        return count

    def connect(self, address: str, port: int, count: int) -> int:
        """The other side."""
        for _ in range(count):
            self._sockets.append(socket.create_connection((address, port)))
        return count

    def end(self, connection: int, sends: int, rank: int, peer: int, channel: int) -> int:
        """An end of a connection, by its number; −1: nothing is moved."""
        number = self._sockets[connection].fileno() if connection >= 0 else -1
        self._ends.append(ctypes.c_void_p(self._nccl.stand_in_connect(number, sends, rank, peer, channel)))
        return len(self._ends) - 1

    def operate(self, first: int, collective: int, operations: list[list[int]], ends: list[int]) -> list[list[int]]:
        """Operations of transfers of these sizes on each end, which has a thread → each end's bytes and transfers."""

        def proxy(end: int) -> None:
            for number, sizes in enumerate(operations):
                array = (ctypes.c_int * len(sizes))(*sizes)
                at = ctypes.c_uint64(first + number)
                if self._nccl.stand_in_operate(self._ends[end], at, collective, 0, 2, len(sizes), array):
                    return

        threads = [threading.Thread(target=proxy, args=(end,)) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [self.moved(end) for end in range(len(self._ends))]

    def repeat(self, end: int, times: int, sizes: list[int]) -> list[int]:
        """The same operation so often, in one call."""
        array = (ctypes.c_int * len(sizes))(*sizes)
        self._nccl.stand_in_repeat(self._ends[end], times, len(sizes), array)
        return self.moved(end)

    def moved(self, end: int) -> list[int]:
        """Bytes and transfers so far."""
        bytes_, transfers = ctypes.c_uint64(), ctypes.c_uint64()
        self._nccl.stand_in_moved(self._ends[end], ctypes.byref(bytes_), ctypes.byref(transfers))
        return [bytes_.value, transfers.value]


def main() -> None:
    rank = Rank(sys.argv[1])
    print(json.dumps("mapped"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(rank, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
