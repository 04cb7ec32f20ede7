# SPDX-License-Identifier: Apache-2.0
"""What a training flow carries: gradients, or the control traffic alongside them (the papers' small flows).

Rendezvous, negotiation of tensors and the bootstrap of NCCL or gloo exchange short messages, in small segments, some
kilobytes per step; gradients come in megabytes and full segments. The two are orders of magnitude apart, so the
largest flow of the job on the host is the measure, and no port has to be known.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Traffic(IntEnum):
    """What a flow of a rank carries."""

    UNKNOWN = 0
    GRADIENT = 1
    CONTROL = 2
    UNEXPLAINED = 3  # as GRADIENT, of a job whose steps are not understood


TRAFFIC_NAMES = ("", "gradient", "control", "unexplained")
"""Names of Traffic, in its order, as shown and as stored."""

BULK = (Traffic.GRADIENT, Traffic.UNEXPLAINED)
"""What training is about."""

_CONTROL_SHARE = 0.01  # of the payload of the job's largest flow
_SMALL_SEGMENT = 512  # bytes of payload: half of what the shortest usual MTU lets a bulk transfer fill
_EVIDENCE = 1 << 16  # bytes of the largest flow before anything is said


def flow_traffic(
    payload_bytes: npt.NDArray[np.int64],
    packets: npt.NDArray[np.int64],
    lifetime_s: npt.NDArray[np.float64],
    job: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    """Traffic of each DL flow of one host, (flows,): payload and the packets that carried some, since its first one.

    Control is a flow whose mean rate is less than 1 % of the job's largest flow's, or less than 10 % in segments that
    average under 512 bytes. A flow without payload (acknowledgements) says nothing, nor does any before the largest one
    has moved 64 kB.
    """
    rate = payload_bytes / np.maximum(lifetime_s, 1.0)
    jobs, of_flow = np.unique(job, return_inverse=True)
    largest_rate, largest = np.zeros(len(jobs)), np.zeros(len(jobs), np.int64)
    np.maximum.at(largest_rate, of_flow, rate)
    np.maximum.at(largest, of_flow, payload_bytes)
    share = rate / np.maximum(largest_rate[of_flow], 1e-9)
    small = payload_bytes < _SMALL_SEGMENT * packets
    control = (share < _CONTROL_SHARE) | (small & (share < 10 * _CONTROL_SHARE))
    known = (payload_bytes > 0) & (largest[of_flow] >= _EVIDENCE)
    return np.where(known, np.where(control, Traffic.CONTROL, Traffic.GRADIENT), Traffic.UNKNOWN).astype(np.uint8)
