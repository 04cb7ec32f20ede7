# SPDX-License-Identifier: Apache-2.0
"""What a ring all-reduce has to send, from first principles."""

import math

FLOAT32_BYTES = 4


def ring_bytes(ranks: int, parameters: int, gradient_bytes: int = 0) -> float:
    """Payload bytes that each rank sends per iteration: 2·(N−1)/N·P·4, equation 3.1 of the thesis.

    gradient_bytes: of all parameters together where they are not of 4 bytes each; 0: they are.

    Half of it is the reduce-scatter, half the all-gather. nan where ranks or parameters are unknown (0); 0.0 for a
    single rank, which has nobody to send to. The same number is received.
    """
    if ranks <= 0 or parameters <= 0:
        return math.nan
    return 2 * (ranks - 1) / ranks * (gradient_bytes or parameters * FLOAT32_BYTES)
