# SPDX-License-Identifier: Apache-2.0
"""How a training process and its agent find each other; standard library only, for it is imported by the training.

A packet on a connection to the agent's Unix socket (SOCK_SEQPACKET) is a little-endian head, the job's name in UTF-8,
and one or a few marks. A connection is of one process; when it closes, the process is gone.
"""

import os
import struct
from collections.abc import Mapping
from typing import NamedTuple
from unicodedata import category

DEFAULT_SOCKET = "/run/netmon/marks.sock"
SOCKET_VARIABLE = "NETMON_SOCKET"
JOB_VARIABLE = "NETMON_JOB"

_HEAD = struct.Struct("<4sIiiQ")  # magic, name length, rank, size, parameters
MARK = struct.Struct("<qqq")  # moment, iteration, time_ns
_MAGIC = b"NMK2"
MOST_RANKS = 1 << 20
"""In a job. More is a mistake or a lie, and need not fit into the tables of those who read it."""
MOST_NAME = 255  # bytes of a job's name
MOST_MARKS = 64  # in a packet
MAX_PACKET = _HEAD.size + MOST_NAME + MOST_MARKS * MARK.size

# (rank, size) as the launchers set them, best first.
_RANK_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
# What all ranks of one job, and no other job, have in common.
_JOB_VARIABLES = (
    (JOB_VARIABLE,),
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ("TORCHELASTIC_RUN_ID",),
    ("MASTER_ADDR", "MASTER_PORT"),
    ("JAX_COORDINATOR_ADDRESS",),
    ("PMIX_NAMESPACE",),
    ("SLURM_JOB_ID",),
)


class RankIdentity(NamedTuple):
    """Which rank of which job a process is."""

    job: str
    rank: int
    size: int


class MarkPacket(NamedTuple):
    """One moment as the training process tells it. time_ns is CLOCK_MONOTONIC."""

    job: str
    rank: int
    size: int
    iteration: int
    moment: int
    time_ns: int
    parameters: int


def rank_from_environment(environment: Mapping[str, str]) -> RankIdentity | None:
    """The rank that a launcher gave to a process with this environment; None where it is not a rank."""
    for rank_name, size_name in _RANK_VARIABLES:
        try:
            rank, size = int(environment[rank_name]), int(environment[size_name])
        except (KeyError, ValueError):
            continue
        if is_rank(rank, size):
            return RankIdentity(_job_name(environment), rank, size)
    return None


def is_rank(rank: int, size: int) -> bool:
    """Whether a job can have this rank. Whoever says so, asks here."""
    return 0 <= rank < size <= MOST_RANKS


def printable(text: str, most: int = MOST_NAME) -> str:
    """A name that a stranger has given: `most` bytes of UTF-8, and a mark for each character that is not shown.

    Those are control characters, line breaks, what changes the direction of writing, and halves of pairs.
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "\ufffd" for character in text[:most])
    return text if len(text) <= most // 4 else text.encode()[:most].decode(errors="ignore")


def harmless(text: str) -> str:
    """Text for a terminal: line breaks and what is shown stay, whatever else would move or colour things is a mark."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" or category(c) == "Zs" else "\ufffd" for c in text)


def _job_name(environment: Mapping[str, str]) -> str:
    for names in _JOB_VARIABLES:
        values = [environment.get(name, "") for name in names]
        if all(values):
            return printable(":".join(values))
    return "training"


def socket_path(environment: Mapping[str, str] = os.environ) -> str:
    """Where the agent listens for marks."""
    return environment.get(SOCKET_VARIABLE, DEFAULT_SOCKET)


def head(job: str, rank: int, size: int, parameters: int) -> bytes:
    """Whose marks follow. A job's name is cut as `printable` cuts it."""
    name = printable(job).encode()
    return _HEAD.pack(_MAGIC, len(name), rank, size, parameters) + name


def encode(mark: MarkPacket) -> bytes:
    whose = head(mark.job, mark.rank, mark.size, mark.parameters)
    return whose + MARK.pack(mark.moment, mark.iteration, mark.time_ns)


def decode(packet: bytes) -> list[MarkPacket]:
    """All marks of a packet, at least one. Raises ValueError with the reason."""
    if len(packet) < _HEAD.size or not packet.startswith(_MAGIC):
        raise ValueError(f"{len(packet)} bytes that are not marks")
    _, length, rank, size, parameters = _HEAD.unpack_from(packet)
    name, marks = packet[_HEAD.size : _HEAD.size + length], packet[_HEAD.size + length :]
    if not marks or len(marks) % MARK.size:
        raise ValueError(f"{len(marks)} bytes of marks after a job name of {length}; each mark has {MARK.size}")
    if not is_rank(rank, size):
        raise ValueError(f"a mark of rank {rank} of {size}")
    if len(packet) > MAX_PACKET:
        raise ValueError(f"{len(packet)} bytes in a packet, more than {MAX_PACKET}")
    job = printable(name.decode(errors="replace"))
    return [
        MarkPacket(job, rank, size, iteration, moment, time_ns, parameters)
        for moment, iteration, time_ns in MARK.iter_unpack(marks)
    ]
