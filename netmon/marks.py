# SPDX-License-Identifier: Apache-2.0
"""How a training process and its agent find each other; standard library only, for it is imported by the training.

A mark is a fixed little-endian head, then the job's name in UTF-8. One or a few of them are a packet on a connection to
the agent's Unix socket (SOCK_SEQPACKET). A connection is of one process; when it closes, the process is gone.
"""

import os
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

DEFAULT_SOCKET = "/run/netmon/marks.sock"
SOCKET_VARIABLE = "NETMON_SOCKET"
JOB_VARIABLE = "NETMON_JOB"

_HEAD = struct.Struct("<4sBBHiiqqQ")  # magic, moment, 0, name length, rank, size, iteration, time_ns, parameters
_MAGIC = b"NMK1"
MAX_PACKET = 8 * (_HEAD.size + 255)

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
        if 0 <= rank < size:
            return RankIdentity(_job_name(environment), rank, size)
    return None


def _job_name(environment: Mapping[str, str]) -> str:
    for names in _JOB_VARIABLES:
        values = [environment.get(name, "") for name in names]
        if all(values):
            return ":".join(values)
    return "training"


def socket_path(environment: Mapping[str, str] = os.environ) -> str:
    """Where the agent listens for marks."""
    return environment.get(SOCKET_VARIABLE, DEFAULT_SOCKET)


def packer(job: str) -> Callable[[int, int, int, int, int, int], bytes]:
    """A function that makes packets of one job: (moment, rank, size, iteration, time_ns, parameters) → packet.

    A job's name is cut at 255 bytes.
    """
    name, pack = job.encode()[:255], _HEAD.pack
    length = len(name)

    def packed(moment: int, rank: int, size: int, iteration: int, time_ns: int, parameters: int) -> bytes:
        return pack(_MAGIC, moment, 0, length, rank, size, iteration, time_ns, parameters) + name

    return packed


def encode(mark: MarkPacket) -> bytes:
    """One packet. A job's name is cut at 255 bytes."""
    return packer(mark.job)(mark.moment, mark.rank, mark.size, mark.iteration, mark.time_ns, mark.parameters)


def decode(packet: bytes) -> list[MarkPacket]:
    """The reverse of encode, for all marks of a packet. Raises ValueError with the reason."""
    marks: list[MarkPacket] = []
    at = 0
    while at < len(packet) or not marks:
        if len(packet) - at < _HEAD.size or packet[at : at + 4] != _MAGIC:
            raise ValueError(f"{len(packet) - at} bytes that are not a mark")
        _, moment, _, length, rank, size, iteration, time_ns, parameters = _HEAD.unpack_from(packet, at)
        name = packet[at + _HEAD.size : at + _HEAD.size + length]
        if len(name) != length:
            raise ValueError(f"a mark whose job name has {len(name)} bytes where {length} are announced")
        if not 0 <= rank < max(size, 1):
            raise ValueError(f"a mark of rank {rank} of {size}")
        marks.append(MarkPacket(name.decode(errors="replace"), rank, size, iteration, moment, time_ns, parameters))
        at += _HEAD.size + length
    return marks
