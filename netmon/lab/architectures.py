# SPDX-License-Identifier: Apache-2.0
"""The parameter tensors of published architectures, first to last layer, by their number of parameters.

Each function follows the paper that it names, in the form that the model zoos train (1000 classes, batch normalisation
with scale and shift except where said). Weights and biases are tensors of their own, as frameworks have them.
"""

from collections.abc import Iterator, Sequence

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


def resnet50() -> Tensors:
    return _resnet((3, 4, 6, 3))


def resnet101() -> Tensors:
    return _resnet((3, 4, 23, 3))


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


def densenet121() -> Tensors:
    """Huang et al., 2017."""
    return _densenet(32, (6, 12, 24, 16), 64)


def densenet161() -> Tensors:
    """Huang et al., 2017."""
    return _densenet(48, (6, 12, 36, 24), 96)


def densenet201() -> Tensors:
    """Huang et al., 2017."""
    return _densenet(32, (6, 12, 48, 32), 64)


def _vgg(blocks: Sequence[int]) -> Tensors:
    """Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015, table 1: biases, no normalisation."""
    tensors: Tensors = []
    inputs = 3
    for outputs, count in zip((64, 128, 256, 512, 512), blocks, strict=True):
        for _ in range(count):
            tensors += _dense(inputs * 9, outputs)
            inputs = outputs
    return tensors + _dense(inputs * 7 * 7, 4096) + _dense(4096, 4096) + _dense(4096, CLASSES)


def vgg16() -> Tensors:
    """Simonyan and Zisserman, 2015, configuration D."""
    return _vgg((2, 2, 3, 3, 3))


def vgg19() -> Tensors:
    """Simonyan and Zisserman, 2015, configuration E."""
    return _vgg((2, 2, 4, 4, 4))


def mobilenet() -> Tensors:
    """Howard et al., MobileNets, 2017, table 1: depthwise and pointwise convolutions in turn."""
    tensors, inputs = _conv(3, 32, 3), 32
    for outputs in (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024):
        tensors += _conv(1, inputs, 3) + _conv(inputs, outputs, 1)
        inputs = outputs
    return tensors + _dense(inputs, CLASSES)


def mobilenetv2() -> Tensors:
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


def inceptionv3() -> Tensors:
    """Szegedy et al., Rethinking the Inception Architecture, CVPR 2016, with its auxiliary classifier.

    Each row of a block is one of its branches: channels and kernels of its convolutions, one after the other.
    """
    return [size for part in _inceptionv3() for size in part]


_Branch = Sequence[tuple[int, int | tuple[int, int]]]


def _branches(inputs: int, *branches: _Branch) -> Iterator[Tensors]:
    for branch in branches:
        channels = inputs
        for outputs, kernel in branch:
            yield _conv(channels, outputs, kernel)
            channels = outputs


def _inceptionv3() -> Iterator[Tensors]:
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


def bertlarge() -> Tensors:
    """Devlin et al., BERT, NAACL 2019: 24 layers of 1024, uncased vocabulary, with the pooler."""
    hidden, inner = 1024, 4096
    norm = [hidden, hidden]
    layer = [*_dense(hidden, hidden) * 4, *norm, *_dense(hidden, inner), *_dense(inner, hidden), *norm]
    return [30522 * hidden, 512 * hidden, 2 * hidden, *norm, *layer * 24, *_dense(hidden, hidden)]
