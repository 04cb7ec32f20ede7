# SPDX-License-Identifier: Apache-2.0
"""Jobs, their pattern and their iterations, found in the traffic alone, while it happens."""

from netmon.dl.inference.live import Inference
from netmon.dl.inference.types import (
    CLASS_SOURCE,
    CONTROL,
    GRADIENT,
    TRAFFIC,
    Findings,
    FlowVerdict,
    InferredIteration,
    InferredJob,
    LinkFlow,
)

__all__ = [
    "CLASS_SOURCE",
    "CONTROL",
    "GRADIENT",
    "TRAFFIC",
    "Findings",
    "FlowVerdict",
    "Inference",
    "InferredIteration",
    "InferredJob",
    "LinkFlow",
]
