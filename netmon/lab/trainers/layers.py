# SPDX-License-Identifier: Apache-2.0
"""How a model's parameters lie in its layers; standard library only, for Horovod's environment imports it too."""

import json
from itertools import pairwise
from pathlib import Path

LAYERS = 16


def layer_sizes(parameters: int, layers: int = LAYERS) -> list[int]:
    """Parameters of each layer, first to last; they add up to `parameters`, each at least 1.

    Layers grow linearly, as the stages of convolutional networks do: the last has `layers` times the first.
    """
    layers = max(1, min(layers, parameters))
    spare, weights = parameters - layers, layers * (layers + 1) // 2
    ends = [spare * (k * (k + 1) // 2) // weights for k in range(layers + 1)]
    return [1 + end - start for start, end in pairwise(ends)]


def read_layers(path: str, parameters: int) -> list[int]:
    """Layers from a file, a JSON list of numbers; without a file, those of layer_sizes()."""
    if not path:
        return layer_sizes(parameters)
    sizes: list[int] = json.loads(Path(path).read_text())
    return sizes


def gradient_times_ns(layers: int, compute_ns: int, backward_share: float) -> list[int]:
    """When each layer's gradient is there, last layer first, in ns from the step's start.

    The backward pass takes the last `backward_share` of the computing, and each layer an equal part of it. With 0 all
    gradients come at its end.
    """
    forward_ns = compute_ns * (1 - backward_share)
    backward_ns = compute_ns - forward_ns
    return [round(forward_ns + backward_ns * (done + 1) / layers) for done in range(layers)]
