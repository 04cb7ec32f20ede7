# SPDX-License-Identifier: Apache-2.0
"""The models of the papers: the tensors that each hands to Horovod, and how long an accelerator computes a step.

**Sizes** follow from the architectures (netmon/lab/architectures.py); their sums are the published parameter counts.

**Compute times** are derived, because the thesis' table 3.1 is not at hand: multiply-adds per sample (published) × time
per multiply-add that one published benchmark measured with a model of the same family, forward and backward, on an
NVIDIA V100 in 32-bit floats (github.com/u39kun/deep-learning-benchmark, PyTorch 0.3, 16 images): VGG-16 83.5 ms,
ResNet-152 136.5 ms, DenseNet-161 142.5 ms, the forward pass alone 26.2, 38.7 and 48.3 ms. Inception and BERT are taken
at ResNet's speed, MobileNet, whose memory accesses bound it, at DenseNet's. 128 images per step are what NVIDIA
suggests for ResNet-50 in 32 bit on a V100 of 16 GB.

**Scale**: one factor, rate / 10 Gbit/s, for the sizes of tensors and flows alike. Computing is not scaled: on a link of
a tenth of the rate, a tenth of the bytes take the published time, so the ratio of computing to communication stays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from netmon.errors import UsageError
from netmon.lab import architectures
from netmon.lab.traffic.flow_sizes import PUBLISHED_RATE_BPS

IMAGES, SEQUENCES = 128, 16


@dataclass(frozen=True)
class Speed:
    """What was measured of one family, per sample."""

    step_ms: float
    forward_ms: float
    giga_multiply_adds: float

    @property
    def ms(self) -> float:
        """Per 10⁹ multiply-adds of the forward pass: the time of forward and backward pass."""
        return self.step_ms / self.giga_multiply_adds

    @property
    def backward_share(self) -> float:
        """Of the step's computing: the time in which gradients come, and can be sent meanwhile."""
        return 1 - self.forward_ms / self.step_ms


_VGG = Speed(83.5 / 16, 26.2 / 16, 15.47)
_RESNET = Speed(136.5 / 16, 38.7 / 16, 11.51)
_DENSENET = Speed(142.5 / 16, 48.3 / 16, 7.73)


@dataclass(frozen=True)
class Model:
    """A published model. parameters: trainable ones, as published; giga_multiply_adds: of one sample's forward pass."""

    parameters: int
    giga_multiply_adds: float
    speed: Speed
    architecture: Callable[[], list[int]]
    batch: int = IMAGES


MODELS = {
    "resnet50": Model(25_557_032, 4.09, _RESNET, architectures.resnet50),
    "resnet101": Model(44_549_160, 7.80, _RESNET, architectures.resnet101),
    "densenet121": Model(7_978_856, 2.83, _DENSENET, architectures.densenet121),
    "densenet161": Model(28_681_000, 7.73, _DENSENET, architectures.densenet161),
    "densenet201": Model(20_013_928, 4.29, _DENSENET, architectures.densenet201),
    "vgg16": Model(138_357_544, 15.47, _VGG, architectures.vgg16),
    "vgg19": Model(143_667_240, 19.63, _VGG, architectures.vgg19),
    "inceptionv3": Model(27_161_264, 5.71, _RESNET, architectures.inceptionv3),
    "mobilenet": Model(4_231_976, 0.57, _DENSENET, architectures.mobilenet),
    "mobilenetv2": Model(3_504_872, 0.30, _DENSENET, architectures.mobilenetv2),
    "bertlarge": Model(335_141_888, 38.7, _RESNET, architectures.bertlarge, SEQUENCES),
}
"""Parameters as torchvision states them (Inception with its auxiliary classifier), MobileNet's as Keras does and

BERT-large's as Hugging Face does; its samples are sequences of 128 tokens through 302 million encoder weights.
"""


@dataclass(frozen=True)
class Workload:
    """A model as the lab trains it. layers: parameters of each tensor, first to last."""

    model: str
    layers: tuple[int, ...]
    compute_ns: int
    backward_share: float
    batch: int
    scale: float

    @property
    def parameters(self) -> int:
        """After scaling."""
        return sum(self.layers)


@cache
def workload(name: str, rate_bps: int, batch: int = 0) -> Workload:
    """A model scaled to links of rate_bps. batch 0: the model's own. Raises UsageError for an unknown model."""
    if name not in MODELS:
        raise UsageError(f"no model {name!r}; choose {', '.join(MODELS)}")
    model = MODELS[name]
    scale = rate_bps / PUBLISHED_RATE_BPS
    layers = tuple(max(1, round(size * scale)) for size in model.architecture())
    batch = batch or model.batch
    compute_ns = round(batch * model.giga_multiply_adds * model.speed.ms * 1e6)
    return Workload(name, layers, compute_ns, round(model.speed.backward_share, 3), batch, scale)
