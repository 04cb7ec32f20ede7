# SPDX-License-Identifier: Apache-2.0
"""What the inference gets and what it gives. Times are UTC ns, byte counts transport payload."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

TRAFFIC = np.dtype([("time_ns", "<i8"), ("flow", "<i8"), ("payload_bytes", "<i8")])
"""Payload of one flow in one bucket that begins at time_ns. `flow` is the caller's own number of it."""

GRADIENT, CONTROL = "gradient", "control"


@dataclass(frozen=True)
class LinkFlow:
    """What is known of one flow: where it was seen, and its 5-tuple."""

    host: str
    link: str
    direction: int  # records.Direction
    src: str
    dst: str
    src_port: int
    dst_port: int
    protocol: int


@dataclass(frozen=True)
class TrafficGroup:
    """Members of a job that exchange something among themselves in each step."""

    kind: str  # of netmon.dl.inference.grouping
    members: tuple[str, ...]  # addresses; of a pipeline in the order of its stages, else ascending
    bytes_per_iteration: int  # that a member sends, on average


@dataclass(frozen=True)
class InferredJob:
    """Hosts that train together. Of a ring, each member sends to the next and the last to the first."""

    name: str
    members: tuple[str, ...]  # addresses
    hosts: tuple[str, ...]  # of the members, in their order; empty where none of their links is watched
    pattern: str  # "ring", "star", "tree", "clique", "hierarchical", "pipeline"; empty: none
    period_ns: int  # median of the last iterations
    bytes_per_iteration: int  # that a member sends, median over the members
    ended: bool = False
    groups: tuple[TrafficGroup, ...] = ()


@dataclass(frozen=True)
class InferredIteration:
    """One iteration of a job, [start, end): from the end of the gradient traffic of the one before to that of its own.

    The end of the communication is the moment that the traffic shows best: a rank's wait is over as soon as its last
    gradient is there and it has passed on what it had to; where it speaks to the others again soon after, that is when.
    The beginning tells less of the ranks, for nothing moves before the last of them has handed in a gradient. The first
    iteration, or the first after a long pause, begins with its traffic. error_ns bounds how far comm_start_ns is from
    what was on the wire.
    """

    job: str
    number: int  # from 0, the first that was seen
    start_ns: int
    end_ns: int
    comm_start_ns: int
    comm_end_ns: int
    error_ns: int
    received_ns: tuple[int, ...]  # per member, when it was through with its last gradient of this iteration


@dataclass(frozen=True)
class FlowVerdict:
    """What a flow is to a job."""

    job: str
    member: int  # whose: index into InferredJob.members of the end at which the flow was seen
    traffic: str  # GRADIENT or CONTROL


@dataclass(frozen=True)
class Findings:
    """What is new: jobs found or changed, iterations finished, flows with a verdict or with another one."""

    jobs: tuple[InferredJob, ...] = ()
    iterations: tuple[InferredIteration, ...] = ()
    flows: Mapping[int, FlowVerdict] = field(default_factory=dict)
