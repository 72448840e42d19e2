"""The sizes of the built-in workloads: parameter shapes in the model's own order.

The models are built from the same sizes. Pure Python, so that a job can be checked and costed without torch or data.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from trainers.spec.workloads import (
    ConvNet,
    DiamondsMlp,
    DigitsMlp,
    FlightsEmbedding,
    MinilmLora,
    OwnWorkload,
    StdlibLm,
    WorkloadConfig,
)

Shape = tuple[int, ...]

#: Channels of the 3x3 convolutions. A pooling follows each of the first three.
CONV_CHANNELS: dict[str, tuple[int, ...]] = {
    "small": (16, 32, 64),
    "medium": (32, 64, 128, 128, 256),
    "large": (96, 192, 384, 512, 512),
}
NUM_CLASSES = 10


@dataclass(frozen=True)
class Transformer:
    """The size of a transformer whose hidden layers are four times as wide as its stream."""

    width: int
    num_blocks: int
    num_heads: int


TRANSFORMERS: dict[str, Transformer] = {
    "0.2M": Transformer(width=84, num_blocks=2, num_heads=3),
    "1M": Transformer(width=160, num_blocks=3, num_heads=5),
    "5M": Transformer(width=256, num_blocks=6, num_heads=8),
    "25M": Transformer(width=512, num_blocks=8, num_heads=8),
}
NUM_BYTES = 256

DIGITS_WIDTHS = (64, 512, 512, 10)
#: Six numbers, and 5 cuts + 7 colors + 8 clarities one-hot.
DIAMONDS_WIDTHS = (26, 256, 256, 1)

#: The columns of ids, and the values of each: those of the training flights, and one for all others.
FLIGHT_IDS = {"carrier": 17, "origin": 4, "dest": 105, "tailnum": 3987, "hour": 20, "month": 13}
FLIGHT_NUMBERS = ("distance", "temp", "humid", "wind_speed", "precip", "pressure", "visib")


def flight_widths(width: int) -> tuple[int, ...]:
    """Return the widths of the perceptron over one vector of `width` for each id, and the numbers."""
    return (len(FLIGHT_IDS) * width + len(FLIGHT_NUMBERS), 128, 128, 2)


@dataclass(frozen=True)
class Encoder:
    """The size of a pretrained BERT; its vocabulary and its hidden layers are as wide as the weights say."""

    width: int
    num_layers: int
    num_heads: int


MINILM = Encoder(width=384, num_layers=6, num_heads=12)
NUM_TOPICS = 13


def parameter_shapes(config: WorkloadConfig) -> tuple[Shape, ...] | None:
    """Return the shapes of the model's trained parameters; None for a user's own model, which only workers know."""
    match config:
        case DigitsMlp():
            return tuple(_perceptron(DIGITS_WIDTHS))
        case DiamondsMlp():
            return tuple(_perceptron(DIAMONDS_WIDTHS))
        case ConvNet():
            return tuple(_conv_net(CONV_CHANNELS[config.size]))
        case StdlibLm():
            return tuple(_transformer(TRANSFORMERS[config.size], config.context))
        case FlightsEmbedding(width=width):
            return ((sum(FLIGHT_IDS.values()), width), *_perceptron(flight_widths(width)))
        case MinilmLora(rank=rank):
            adapter = ((rank, MINILM.width), (MINILM.width, rank))
            return (*adapter * 2 * MINILM.num_layers, *_perceptron((MINILM.width, NUM_TOPICS)))
        case OwnWorkload():
            return None


def _perceptron(widths: tuple[int, ...]) -> Iterator[Shape]:
    for inputs, outputs in itertools.pairwise(widths):
        yield (outputs, inputs)
        yield (outputs,)


def _conv_net(channels: tuple[int, ...]) -> Iterator[Shape]:
    for inputs, outputs in itertools.pairwise((1, *channels)):
        yield (outputs, inputs, 3, 3)
        yield from ((outputs,), (outputs,))  # BatchNorm's scale and shift
    yield from ((NUM_CLASSES, channels[-1]), (NUM_CLASSES,))


def _transformer(size: Transformer, context: int) -> Iterator[Shape]:
    """The embedding is the output layer as well, and occurs once."""
    w = size.width
    norm: tuple[Shape, ...] = ((w,), (w,))
    yield from ((NUM_BYTES, w), (context, w))
    for _ in range(size.num_blocks):
        yield from (*norm, (3 * w, w), (3 * w,), (w, w), (w,))  # attention
        yield from (*norm, (4 * w, w), (4 * w,), (w, 4 * w), (w,))  # hidden layer
    yield from norm
