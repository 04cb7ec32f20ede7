# SPDX-License-Identifier: Apache-2.0
"""Between whom a culprit's bytes went: by the flow of it that carried most of them meanwhile."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from netmon.records import Direction
from netmon.views import Cause, Verdict

NAMED = (Cause.CROSS, Cause.OTHER_JOB)
"""Causes of which the culprit has flows."""


def with_ends(
    verdict: Verdict, payload_bytes: npt.NDArray[np.number], described: Callable[[int], tuple[str, str]]
) -> Verdict:
    """payload_bytes: of each of the culprit's flows on the verdict's link, while the iteration lasted; of none, or
    where none carried any, nothing is added. described: of one of them whose process it is, and at whose host, or at
    which address, its other end is.
    """
    if not len(payload_bytes) or payload_bytes.max() <= 0:
        return verdict
    user, far = described(int(payload_bytes.argmax()))
    sender, receiver = (verdict.host, far) if verdict.direction == Direction.TX else (far, verdict.host)
    return replace(verdict, culprit_user=user, sender=sender, receiver=receiver)
