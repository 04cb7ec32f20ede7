# SPDX-License-Identifier: Apache-2.0
"""How a model's parameters lie in its layers; standard library only, for Horovod's environment imports it too."""

from itertools import pairwise

LAYERS = 16


def layer_sizes(parameters: int, layers: int = LAYERS) -> list[int]:
    """Parameters of each layer, first to last; they add up to `parameters`, each at least 1.

    Layers grow linearly, as the stages of convolutional networks do: the last has `layers` times the first.
    """
    layers = max(1, min(layers, parameters))
    spare, weights = parameters - layers, layers * (layers + 1) // 2
    ends = [spare * (k * (k + 1) // 2) // weights for k in range(layers + 1)]
    return [1 + end - start for start, end in pairwise(ends)]
