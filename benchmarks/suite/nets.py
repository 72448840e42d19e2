"""The nets of the suite's tasks: for images, text and tables."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.traffic.shapes import Transformer as TransformerSize
from trainers.workloads.transformer import ByteTransformer

#: Bytes that a transformer sees.
CONTEXT = 32


def perceptron(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers of these widths with an activation between them; inputs are flattened."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


# -- images ------------------------------------------------------------------------------------------------


class Fourier(nn.Module):
    """Sines and cosines of random frequencies (Tancik et al., 2020): without them a perceptron learns no detail."""

    def __init__(self, num_inputs: int, num_waves: int) -> None:
        super().__init__()
        self.register_buffer("waves", 6 * torch.randn(num_inputs, num_waves))

    def forward(self, places: Tensor) -> Tensor:
        angles = places @ self.waves
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Residual(nn.Module):
    """A convolutional block beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(images + self.block(images))


def conv(size: int, *, norm: bool, depth: int = 2, width: int = 8) -> nn.Sequential:
    """Return a small convolutional net for square images of `size` pixels and ten classes."""
    layers: list[nn.Module] = []
    channels = 1
    for _ in range(depth):
        layers += [nn.Conv2d(channels, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
        channels = width
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * (size // 2) ** 2, 10)]
    return nn.Sequential(*layers)


def residual() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), Residual(8), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


def denoiser() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 3, 3, padding=1),
    )  # fmt: skip


def painter() -> nn.Sequential:
    return nn.Sequential(Fourier(2, 32), *perceptron(64, 64, 64, 3))


def texture_net(*, norm: bool) -> nn.Sequential:
    return nn.Sequential(*conv(8, norm=norm)[:-1], nn.Linear(128, 2))


class PatchTransformer(nn.Module):
    """A transformer over the patches of a grey image, two pixels wide (Dosovitskiy et al., ICLR 2021)."""

    def __init__(self, size: int, num_classes: int, *, num_blocks: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.places = nn.Parameter(0.02 * torch.randn((size // 2) ** 2, width))
        block = nn.TransformerEncoderLayer(
            width, 3, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, num_blocks, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(images), -1, 4)
        return self.head(self.blocks(self.embed(patches) + self.places).mean(1))


def fashion_net() -> nn.Sequential:
    return perceptron(196, 64, 10)


def mnist_vit() -> PatchTransformer:
    return PatchTransformer(14, 10, num_blocks=3)


def textures_vit() -> PatchTransformer:
    return PatchTransformer(8, 2, num_blocks=4)


def mnist_deep() -> nn.Sequential:
    return perceptron(196, 64, 64, 64, 64, 64, 10)


def deep_tanh() -> nn.Sequential:
    return perceptron(196, 64, 64, 64, 64, 10, activation=nn.Tanh)


def sigmoids() -> nn.Sequential:
    return perceptron(64, 64, 64, 10, activation=nn.Sigmoid)


def lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), *perceptron(144, 64, 32, 10),
    )  # fmt: skip


def group_normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 2),
    )  # fmt: skip


# -- text --------------------------------------------------------------------------------------------------


def gpt(width: int, num_blocks: int, num_heads: int) -> ByteTransformer:
    """Return the product's own transformer, whose weights begin as GPT-2's."""
    return ByteTransformer(TransformerSize(width, num_blocks, num_heads), CONTEXT)


def speller() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(27, 16), *perceptron(224, 64, 15))


class Transformer(nn.Module):
    """A causal transformer of one block, with layer normalisation before each part."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow, self.head = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.Linear(width, 256),
        )

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.bytes(text) + self.places
        parts = self.attention(self.norms[0](hidden)).unflatten(-1, (3, 2, -1)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.merge(mixed.transpose(1, 2).flatten(-2))
        hidden = hidden + self.narrow(functional.gelu(self.widen(self.norms[1](hidden))))
        return self.head(self.norms[2](hidden))


class Adapted(nn.Module):
    """A linear layer, frozen, and a product of two thin matrices beside it (LoRA; Hu et al., 2022)."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / math.sqrt(frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.frozen(inputs) + inputs @ self.down.T @ self.up.T


class Recurrent(nn.Module):
    """Embeddings, a GRU or another cell, and a linear layer: at every place, or at the last alone."""

    def __init__(
        self,
        num_symbols: int,
        num_classes: int,
        *,
        last: bool,
        width: int = 24,
        depth: int = 1,
        cell: type[nn.RNNBase] = nn.GRU,
    ) -> None:
        super().__init__()
        self.last = last
        self.symbols, self.gru = nn.Embedding(num_symbols, 16), cell(16, width, depth, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.gru(self.symbols(text))[0]
        return self.head(hidden[:, -1] if self.last else hidden)


def byte_gru() -> Recurrent:
    return Recurrent(256, 256, last=False)


def deep_gru() -> Recurrent:
    return Recurrent(256, 256, last=False, width=32, depth=2)


def byte_lstm() -> Recurrent:
    return Recurrent(256, 256, last=False, width=32, cell=nn.LSTM)


class Neighbours(nn.Module):
    """Predicts each byte from the embeddings of the eight before it."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(256, 8)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 256))

    def forward(self, text: Tensor) -> Tensor:
        return self.layers(self.symbols(text).unfold(1, 8, 1).flatten(2))


# -- tables ------------------------------------------------------------------------------------------------


def diamond_pricer() -> nn.Sequential:
    return perceptron(26, 64, 32, 1)


def diamonds_deep() -> nn.Sequential:
    return perceptron(26, 64, 64, 64, 64, 1)


def patient_net() -> nn.Sequential:
    return perceptron(10, 32, 1)


def house_net() -> nn.Sequential:
    return perceptron(4, 64, 1)


def weather_net() -> nn.Sequential:
    return perceptron(8, 64, 32, 1)
