"""Layers of three well-known models as plain tables, so that their gradient buckets follow without a GPU.

Only what the exchange needs is here: each layer's parameters and its arithmetic for one sample. Checked in
the tests against the published totals.

Sources: He et al., arXiv 1512.03385 (ResNet; the stride is in the 3x3 convolution, as in torchvision's
models, and the CIFAR form has a 3x3 stem without pooling, as in kuangliu/pytorch-cifar); Devlin et al.,
arXiv 1810.04805 (BERT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A norm and an activation function read and write memory rather than calculate. Backward they touch each
# element about 8 times (norm: output gradient twice, input twice, result; activation function: gradient,
# output, result) at 4 bytes, and a GPU does about 8 fp32 multiply-adds in the time of one byte (V100:
# 7.8e12 a second over 0.9e12 bytes a second), hence 8 x 4 x 8.
MULTIPLY_ADDS_PER_ACTIVATION = 256


@dataclass(frozen=True)
class Layer:
    """One layer, in the order in which the forward pass uses it."""

    name: str
    parameter_counts: tuple[int, ...]
    """Elements of each parameter: weight, then bias."""
    multiply_adds: int
    """Of the forward pass, for one sample."""
    activation_count: int = 0
    """Elements that pass through a norm, an activation function or a softmax, for one sample."""

    @property
    def backward_work(self) -> int:
        """Arithmetic of the backward pass for one sample, memory traffic included [multiply-adds].

            work = 2 * multiply_adds + 256 * activation_count

        Twice, since both the input's and the weight's gradient cost as much as the forward pass. Assumes
        so for the first layer too, whose input needs no gradient (1.0 % of ResNet-50's work).
        """
        return 2 * self.multiply_adds + MULTIPLY_ADDS_PER_ACTIVATION * self.activation_count


def resnet50() -> tuple[Layer, ...]:
    """ResNet-50 for ImageNet: 224 x 224 pixels, 1,000 classes."""
    layers = _convolution("stem", 3, 64, kernel=7, side=112)
    channels, side = 64, 56  # after the pooling
    for stage, (width, block_count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(1, block_count + 1):
            name = f"stage{stage}.block{block}"
            side_in = side
            if stage > 1 and block == 1:
                side //= 2
            layers += _convolution(f"{name}.reduce", channels, width, kernel=1, side=side_in)
            layers += _convolution(f"{name}.middle", width, width, kernel=3, side=side)
            layers += _convolution(f"{name}.expand", width, 4 * width, kernel=1, side=side)
            if block == 1:
                layers += _convolution(f"{name}.shortcut", channels, 4 * width, kernel=1, side=side)
            channels = 4 * width
    return (*layers, _linear("classifier", channels, 1000))


def resnet18_cifar() -> tuple[Layer, ...]:
    """ResNet-18 in its CIFAR-10 form: 32 x 32 pixels, 10 classes."""
    layers = _convolution("stem", 3, 64, kernel=3, side=32)
    channels, side = 64, 32
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in (1, 2):
            name = f"stage{stage}.block{block}"
            is_narrowing = stage > 1 and block == 1
            if is_narrowing:
                side //= 2
            layers += _convolution(f"{name}.first", channels, width, kernel=3, side=side)
            layers += _convolution(f"{name}.second", width, width, kernel=3, side=side)
            if is_narrowing:
                layers += _convolution(f"{name}.shortcut", channels, width, kernel=1, side=side)
            channels = width
    return (*layers, _linear("classifier", channels, 10))


def bert_base(sequence_length: int = 384) -> tuple[Layer, ...]:
    """BERT-base (uncased) that marks an answer's start and end in a text, without the unused pooler.

    Args:
        sequence_length: tokens in a sample; 384 is what is usual on SQuAD
    """
    hidden, inner, head_count = 768, 3072, 12
    layers = [
        Layer("embedding.word", (30522 * hidden,), 0),
        Layer("embedding.kind", (2 * hidden,), 0),
        Layer("embedding.position", (512 * hidden,), 0),
        _layer_norm("embedding.norm", hidden, sequence_length),
    ]
    for block in range(1, 13):
        name = f"block{block}"
        layers += [_linear(f"{name}.{part}", hidden, hidden, sequence_length) for part in ("q", "k", "v")]
        layers += [
            Layer(
                f"{name}.attention",
                (),
                2 * sequence_length**2 * hidden,  # queries with keys, weights with values
                activation_count=head_count * sequence_length**2,
            ),
            _linear(f"{name}.project", hidden, hidden, sequence_length),
            _layer_norm(f"{name}.norm1", hidden, sequence_length),
            _linear(f"{name}.widen", hidden, inner, sequence_length),
            Layer(f"{name}.gelu", (), 0, activation_count=inner * sequence_length),
            _linear(f"{name}.narrow", inner, hidden, sequence_length),
            _layer_norm(f"{name}.norm2", hidden, sequence_length),
        ]
    return (*layers, _linear("answer", hidden, 2, sequence_length))


MODELS: Mapping[str, Callable[[], tuple[Layer, ...]]] = {
    "bert-base": bert_base,
    "resnet18": resnet18_cifar,
    "resnet50": resnet50,
}
"""By the name of the sample job."""


def _convolution(name: str, channels_in: int, channels_out: int, *, kernel: int, side: int) -> list[Layer]:
    """A convolution without bias that makes side x side pixels, and its batch normalisation."""
    weight_count = channels_in * channels_out * kernel**2
    return [
        Layer(f"{name}.convolution", (weight_count,), weight_count * side**2),
        Layer(f"{name}.norm", (channels_out, channels_out), 0, activation_count=channels_out * side**2),
    ]


def _linear(name: str, width_in: int, width_out: int, position_count: int = 1) -> Layer:
    """A linear layer with bias, used at every position."""
    weight_count = width_in * width_out
    return Layer(name, (weight_count, width_out), weight_count * position_count)


def _layer_norm(name: str, width: int, position_count: int) -> Layer:
    return Layer(name, (width, width), 0, activation_count=width * position_count)
