# SPDX-License-Identifier: Apache-2.0
"""What a run of the lab is: the same spec and seed make the same run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from netmon.errors import UsageError
from netmon.lab.injections.spec import BY_TRAINER, TRANSFERS, Injection, pauses_of
from netmon.lab.traffic.loads import PUBLISHED_RATE_BPS
from netmon.lab.traffic.profiles import PROFILES
from netmon.lab.trainers.collectives import PATTERNS
from netmon.lab.trainers.script import layer_sizes

# --- The parameter tensors of published architectures, first to last layer, by their number of parameters.
#
# Each function follows the paper that it names, as the model zoos train them (1000 classes, batch normalisation
# with scale and shift except where said). Weights and biases are tensors of their own, as frameworks have them.

Tensors = list[int]
CLASSES = 1000


def _conv(inputs: int, outputs: int, kernel: int | tuple[int, int]) -> Tensors:
    """A convolution without bias and its batch normalisation."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    return [inputs * outputs * height * width, outputs, outputs]


def _dense(inputs: int, outputs: int) -> Tensors:
    return [inputs * outputs, outputs]


def _resnet(blocks: Sequence[int]) -> Tensors:
    """He et al., Deep Residual Learning, CVPR 2016, table 1: bottleneck blocks."""
    tensors, inputs = _conv(3, 64, 7), 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for block in range(count):
            tensors += _conv(inputs, width, 1) + _conv(width, width, 3) + _conv(width, 4 * width, 1)
            if block == 0:
                tensors += _conv(inputs, 4 * width, 1)
            inputs = 4 * width
    return tensors + _dense(inputs, CLASSES)


def _densenet(growth: int, blocks: Sequence[int], features: int) -> Tensors:
    """Huang et al., Densely Connected Convolutional Networks, CVPR 2017, table 1: normalisation comes first."""
    tensors = _conv(3, features, 7)
    for number, layers in enumerate(blocks):
        for _ in range(layers):
            tensors += [features, features, features * 4 * growth]
            tensors += [4 * growth, 4 * growth, 4 * growth * growth * 9]
            features += growth
        if number < len(blocks) - 1:
            tensors += [features, features, features * (features // 2)]
            features //= 2
    return [*tensors, features, features, *_dense(features, CLASSES)]


def _vgg(blocks: Sequence[int]) -> Tensors:
    """Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015, table 1: biases, no normalisation."""
    tensors: Tensors = []
    inputs = 3
    for outputs, count in zip((64, 128, 256, 512, 512), blocks, strict=True):
        for _ in range(count):
            tensors += _dense(inputs * 9, outputs)
            inputs = outputs
    return tensors + _dense(inputs * 7 * 7, 4096) + _dense(4096, 4096) + _dense(4096, CLASSES)


def _mobilenet() -> Tensors:
    """Howard et al., MobileNets, 2017, table 1: depthwise and pointwise convolutions in turn."""
    tensors, inputs = _conv(3, 32, 3), 32
    for outputs in (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024):
        tensors += _conv(1, inputs, 3) + _conv(inputs, outputs, 1)
        inputs = outputs
    return tensors + _dense(inputs, CLASSES)


def _mobilenetv2() -> Tensors:
    """Sandler et al., MobileNetV2, CVPR 2018, table 2: expansion, channels, repetitions."""
    tensors, inputs = _conv(3, 32, 3), 32
    for expansion, outputs, count in (
        *((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4)),
        *((6, 96, 3), (6, 160, 3), (6, 320, 1)),
    ):
        for _ in range(count):
            hidden = expansion * inputs
            tensors += _conv(inputs, hidden, 1) if expansion > 1 else []
            tensors += _conv(1, hidden, 3) + _conv(hidden, outputs, 1)
            inputs = outputs
    return tensors + _conv(inputs, 1280, 1) + _dense(1280, CLASSES)


def _inceptionv3() -> Tensors:
    """Szegedy et al., Rethinking the Inception Architecture, CVPR 2016, with its auxiliary classifier.

    Each row of a block is one of its branches: channels and kernels of its convolutions, one after the other.
    """
    return [size for part in _inception_parts() for size in part]


_Branch = Sequence[tuple[int, int | tuple[int, int]]]


def _branches(inputs: int, *branches: _Branch) -> Iterator[Tensors]:
    for branch in branches:
        channels = inputs
        for outputs, kernel in branch:
            yield _conv(channels, outputs, kernel)
            channels = outputs


def _inception_parts() -> Iterator[Tensors]:
    row, column = (1, 7), (7, 1)
    yield from _branches(3, [(32, 3), (32, 3), (64, 3), (80, 1), (192, 3)])
    for inputs, pooled in ((192, 32), (256, 64), (288, 64)):
        yield from _branches(inputs, [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], [(pooled, 1)])
    yield from _branches(288, [(384, 3)], [(64, 1), (96, 3), (96, 3)])
    for c in (128, 160, 160, 192):
        yield from _branches(768, [(192, 1)], [(c, 1), (c, row), (192, column)])
        yield from _branches(768, [(c, 1), (c, column), (c, row), (c, column), (192, row)], [(192, 1)])
    yield from _branches(768, [(128, 1), (768, 5)])  # the auxiliary classifier
    yield _dense(768, CLASSES)
    yield from _branches(768, [(192, 1), (320, 3)], [(192, 1), (192, row), (192, column), (192, 3)])
    for inputs in (1280, 2048):
        yield from _branches(inputs, [(320, 1)], [(384, 1)])
        yield from _branches(384, [(384, (1, 3))], [(384, (3, 1))])
        yield from _branches(inputs, [(448, 1), (384, 3)])
        yield from _branches(384, [(384, (1, 3))], [(384, (3, 1))])
        yield from _branches(inputs, [(192, 1)])
    yield _dense(2048, CLASSES)


def _bertlarge() -> Tensors:
    """Devlin et al., BERT, NAACL 2019: 24 layers of 1024, uncased vocabulary, with the pooler."""
    hidden, inner = 1024, 4096
    norm = [hidden, hidden]
    layer = [*_dense(hidden, hidden) * 4, *norm, *_dense(hidden, inner), *_dense(inner, hidden), *norm]
    return [30522 * hidden, 512 * hidden, 2 * hidden, *norm, *layer * 24, *_dense(hidden, hidden)]


# --- The models of the papers: the tensors that each hands to Horovod, and how long an accelerator computes a step.
#
# **Sizes** follow from the architectures; their sums are the published parameter counts.
#
# **Compute times** are derived, because the thesis' table 3.1 is not at hand: multiply-adds per sample (published) ×
# time per multiply-add that one published benchmark measured with a model of the same family, forward and backward,
# on an NVIDIA V100 in 32-bit floats (github.com/u39kun/deep-learning-benchmark, PyTorch 0.3, 16 images): VGG-16 83.5
# ms, ResNet-152 136.5 ms, DenseNet-161 142.5 ms, the forward pass alone 26.2, 38.7 and 48.3 ms. Inception and BERT
# are taken at ResNet's speed, MobileNet, whose memory accesses bound it, at DenseNet's. 128 images per step are what
# NVIDIA suggests for ResNet-50 in 32 bit on a V100 of 16 GB.
#
# **Scale**: one factor, rate / 10 Gbit/s, for the sizes of tensors and flows alike. Computing is not scaled: on a
# link of a tenth of the rate, a tenth of the bytes take the published time, so the ratio of computing to
# communication stays.

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
    "resnet50": Model(25_557_032, 4.09, _RESNET, partial(_resnet, (3, 4, 6, 3))),
    "resnet101": Model(44_549_160, 7.80, _RESNET, partial(_resnet, (3, 4, 23, 3))),
    "densenet121": Model(7_978_856, 2.83, _DENSENET, partial(_densenet, 32, (6, 12, 24, 16), 64)),
    "densenet161": Model(28_681_000, 7.73, _DENSENET, partial(_densenet, 48, (6, 12, 36, 24), 96)),
    "densenet201": Model(20_013_928, 4.29, _DENSENET, partial(_densenet, 32, (6, 12, 48, 32), 64)),
    "vgg16": Model(138_357_544, 15.47, _VGG, partial(_vgg, (2, 2, 3, 3, 3))),
    "vgg19": Model(143_667_240, 19.63, _VGG, partial(_vgg, (2, 2, 4, 4, 4))),
    "inceptionv3": Model(27_161_264, 5.71, _RESNET, _inceptionv3),
    "mobilenet": Model(4_231_976, 0.57, _DENSENET, _mobilenet),
    "mobilenetv2": Model(3_504_872, 0.30, _DENSENET, _mobilenetv2),
    "bertlarge": Model(335_141_888, 38.7, _RESNET, _bertlarge, SEQUENCES),
}
"""Parameters as torchvision states them (Inception with its auxiliary classifier), MobileNet's as Keras does and

BERT-large's as Hugging Face does; its samples are sequences of 128 tokens through 302 million encoder weights.
"""


# --- A run.

HOROVOD_TRAINERS = ("horovod", "horovod-tensorflow", "horovod-eager", "horovod-keras")
"""Real Horovod: with PyTorch; with TensorFlow, the step a tf.function, eager, or in Keras' own loop."""
PARALLEL_TRAINERS = ("fsdp", "pipeline", "experts", "tensor", "hybrid")
"""Real torch.distributed whose ranks exchange more than sums of gradients."""
TRAINERS = ("ring", *HOROVOD_TRAINERS, "ddp", *PARALLEL_TRAINERS, "jax", "nccl", "generated")
MAX_HOSTS = 200
CONFIGURATIONS = {"A": ((0, 1, 3), ((0, 2),)), "B": ((0, 1, 3), ((2, 0),))}
"""Rings and cross traffic of the thesis, on four hosts. In A cross traffic leaves host 0 on the link by which its

gradients leave; in B it meets them at the switch, on the port to host 0.
"""


@dataclass(frozen=True)
class RunSpec:
    """Who trains, what else is on the links, and where the data go. The defaults are configuration B of the thesis."""

    data: Path
    trainer: str = "ring"
    hosts: int = 4
    ring: tuple[int, ...] = (0, 1, 3)  # host of rank 0, 1, …
    cross: tuple[tuple[int, int], ...] = ((2, 0),)  # (from, to)
    rate_bps: int = 1_000_000_000
    pattern: str = "ring"  # in which the ranks communicate; real Horovod knows only the ring
    model: str = ""  # whose layers and computing these are, as of(…) fills them in; "": none
    batch: int = 0  # samples per step that make compute_ns; 0: not known
    size_scale: float = 1.0  # what the model's tensors were multiplied by
    layers: tuple[int, ...] = ()  # parameters of each tensor; (): as layer_sizes(parameters) has them
    parameters: int = 4_000_000  # float32
    compute_ns: int = 100_000_000
    backward_share: float = 0.0  # of compute_ns, in which gradients come and are sent; 0: all come at its end
    iterations: int = 50
    cross_load: float = 0.8  # payload, as a share of the rate; 0: no cross traffic
    cross_profile: str = "iperf"
    cross_file: Path | None = None  # of the profile "file": its flows, again and again
    cross_after: float = 0.5  # of the iterations
    generator: Path | None = None  # of the trainer "generated": the recorded job that is played again
    injections: tuple[Injection, ...] = ()
    seed: int = 1
    job: str = ""  # the job's name; "": the trainer's own
    marks: bool = False  # Horovod's script uses netmon.horovod; the lab's own trainer always does
    timeline: bool = False  # Horovod's rank 0 writes its Timeline
    profile: bool = False  # every rank of DDP writes its profiler's trace, rank-R.pt.trace.json
    bucket_ns: int = 10_000
    stream_ns: int = 0  # what agents stream; 0: full resolution
    hook: str = "auto"
    bus: bool = False  # agents and two workers on NATS JetStream, instead of one collector
    fair: bool = False  # the switch serves senders in turn, as netmon.lab.network has it
    evidence: bool = True  # False: agents report bytes and marks only, and the collector judges nothing
    monitor: bool = True  # False: the same run, unobserved
    overwrite: bool = False

    def of(self, model: str, batch: int = 0) -> "RunSpec":
        """The same run with a published model, scaled to its rate. batch 0: the model's own. Raises UsageError."""
        if model not in MODELS:
            raise UsageError(f"no model {model!r}; choose {', '.join(MODELS)}")
        published, scale = MODELS[model], self.rate_bps / PUBLISHED_RATE_BPS
        layers = tuple(max(1, round(size * scale)) for size in published.architecture())
        batch = batch or published.batch
        return replace(
            self,
            model=model,
            batch=batch,
            size_scale=scale,
            layers=layers,
            parameters=sum(layers),
            compute_ns=round(batch * published.giga_multiply_adds * published.speed.ms * 1e6),
            backward_share=round(published.speed.backward_share, 3),
        )

    def check(self) -> None:
        """Raise UsageError for the first thing that cannot be run."""
        for wrong, reason in self._objections():
            if wrong:
                raise UsageError(f"cannot run the lab: {reason}")

    def _objections(self) -> list[tuple[bool, str]]:
        hosts = {*self.ring, *(host for pair in self.cross for host in pair)}
        outside = sorted(host for host in hosts if not 0 <= host < self.hosts)
        known = ", ".join(PROFILES)
        return [
            (self.trainer not in TRAINERS, f"no trainer {self.trainer!r}; choose {' or '.join(TRAINERS)}"),
            (not 2 <= self.hosts <= MAX_HOSTS, f"{self.hosts} hosts; it takes 2 to {MAX_HOSTS}"),
            (bool(outside), f"no host {outside}: there are hosts 0 to {self.hosts - 1}; give --hosts"),
            (len(self.ring) < 2, "a ring of one rank sends nothing; give --ring two hosts or more"),
            (len(set(self.ring)) < len(self.ring), "a host is in the ring twice; one rank per host"),
            (
                self.trainer == "hybrid" and len(self.ring) not in (4, 8),
                f"{len(self.ring)} ranks of --trainer hybrid, which has 4, or 8; give --ring so many hosts",
            ),
            (self.pattern not in PATTERNS, f"no pattern {self.pattern!r}; choose {', '.join(PATTERNS)}"),
            (self.pattern != "ring" and self.trainer != "ring", f"a {self.pattern}: only --trainer ring has patterns"),
            (self.marks and not self.real_horovod, "only --trainer horovod… can do with and without marks"),
            (self.timeline and not self.real_horovod, "only --trainer horovod… writes a Timeline"),
            (self.profile and self.trainer != "ddp", "only --trainer ddp writes its profiler's traces"),
            ((self.cross_profile == "file") != bool(self.cross_file), "the profile file goes with --cross-file FILE"),
            ((self.trainer == "generated") != bool(self.generator), "the trainer generated goes with --replay FILE"),
            (any(a == b for a, b in self.cross), "cross traffic from a host to itself crosses no link"),
            (self.cross_profile not in PROFILES, f"no cross profile {self.cross_profile!r}; choose {known}"),
            (not 0 <= self.cross_load <= 1, f"a cross load of {self.cross_load:g}; it is a share of the rate, 0 to 1"),
            (not 0 <= self.cross_after <= 1, f"cross traffic after {self.cross_after:g} of the iterations; 0 to 1"),
            (self.rate_bps < 1_000_000, f"a rate of {self.rate_bps} bit/s; at least 1mbit"),
            (self.parameters < 1, "a model without parameters"),
            (self.compute_ns < 0, "a negative compute time"),
            (not 0 <= self.backward_share <= 1, f"a backward share of {self.backward_share:g}; 0 to 1"),
            (self.iterations < 1, "no iterations"),
            *(wrong for each in self.injections for wrong in each.objections(self.ring, self.hosts, self.iterations)),
            (
                self.trainer.startswith(("horovod-", "generated")) and bool(pauses_of(self.injections)),
                f"no {' or '.join(BY_TRAINER)} of --trainer {self.trainer}: only ring, horovod and ddp pause",
            ),
            (
                self.trainer == "generated" and any(each.kind in TRANSFERS for each in self.injections),
                f"no {' or '.join(TRANSFERS)} of --trainer generated",
            ),
        ]

    @property
    def real_horovod(self) -> bool:
        """Whether Horovod trains, with whatever framework."""
        return self.trainer in HOROVOD_TRAINERS

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Parameters of each tensor, first to last layer."""
        return self.layers or tuple(layer_sizes(self.parameters))

    @property
    def patience_seconds(self) -> float:
        """How long an iteration may take before the run is given up: generously more than it should."""
        communication = 2 * self.parameters * 32 / self.rate_bps
        communication /= min((each.share_left for each in self.injections), default=1.0)
        return 60 + 20 * (self.compute_ns / 1e9 + communication)
