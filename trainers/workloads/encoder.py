"""A small BERT whose weights are frozen, with adapters of low rank, and a classifier on top.

Devlin et al., *BERT* (2019); Hu et al., *LoRA: Low-rank adaptation of large language models* (2021).
Symbols: b texts, t positions, w width of the stream.
"""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainers.traffic.shapes import Encoder

#: The id that fills a text up.
PAD = 0
#: The numerator of an adapter's scale, whatever its rank: another rank then needs no other learning rate (Hu, 4.1).
ALPHA = 16
#: The names of published weights, and ours.
_NAMES = {
    r"^embeddings\.(word|position|token_type)_embeddings\.": r"\1.",
    r"^embeddings\.LayerNorm\.": "norm.",
    r"^encoder\.layer\.": "layers.",
    r"\.attention\.self\.": ".",
    r"\.attention\.output\.dense\.": ".attended.",
    r"\.attention\.output\.LayerNorm\.": ".attention_norm.",
    r"\.intermediate\.dense\.": ".expand.",
    r"\.output\.dense\.": ".contract.",
    r"\.output\.LayerNorm\.": ".hidden_norm.",
}


class AdaptedLinear(nn.Linear):
    """A frozen layer plus a trained one of low rank: `W + (ALPHA / rank) up down`, which begins as `W`."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width, width)
        self.down = nn.Parameter(torch.empty(rank, width))
        self.up = nn.Parameter(torch.zeros(width, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as of a linear layer

    def forward(self, stream: Tensor) -> Tensor:
        added = nn.functional.linear(nn.functional.linear(stream, self.down), self.up)
        return super().forward(stream) + added * (ALPHA / len(self.down))


class Layer(nn.Module):
    """Attention among all words of a text, then a hidden layer; a norm follows each. Queries and values are adapted."""

    def __init__(self, size: Encoder, hidden_width: int, rank: int) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.query = AdaptedLinear(size.width, rank)
        self.key = nn.Linear(size.width, size.width)
        self.value = AdaptedLinear(size.width, rank)
        self.attended = nn.Linear(size.width, size.width)
        self.attention_norm = nn.LayerNorm(size.width, eps=1e-12)
        self.expand = nn.Linear(size.width, hidden_width)
        self.contract = nn.Linear(hidden_width, size.width)
        self.hidden_norm = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, stream: Tensor, is_word: Tensor) -> Tensor:
        b, t, w = stream.shape
        queries, keys, values = (
            layer(stream).view(b, t, self.num_heads, -1).transpose(1, 2)  # (b, heads, t, w / heads)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_word[:, None, None, :])
        stream = self.attention_norm(stream + self.attended(mixed.transpose(1, 2).reshape(b, t, w)))
        normed: Tensor = self.hidden_norm(stream + self.contract(nn.functional.gelu(self.expand(stream))))
        return normed


class TextEncoder(nn.Module):
    """Maps ids of words `(b, t)`, filled up with `PAD`, to the mean of their vectors `(b, w)`."""

    def __init__(self, size: Encoder, published: Mapping[str, Tensor], rank: int) -> None:
        """Take over the `published` weights, by the names that they have there; the pooler is not used.

        Raises KeyError or RuntimeError if they are those of another model.
        """
        super().__init__()
        given = {_renamed(name): tensor for name, tensor in published.items() if tensor.is_floating_point()}
        self.word = nn.Embedding(*given["word.weight"].shape)
        self.position = nn.Embedding(*given["position.weight"].shape)
        self.token_type = nn.Embedding(*given["token_type.weight"].shape)
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        hidden_width = len(given["layers.0.expand.weight"])
        self.layers = nn.ModuleList(Layer(size, hidden_width, rank) for _ in range(size.num_layers))
        frozen = {name for name, _ in self.named_parameters() if not name.endswith((".down", ".up"))}
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)
        adapters = {name: each for name, each in self.state_dict().items() if name not in frozen}
        base = {name: tensor for name, tensor in given.items() if not name.startswith("pooler.")}
        self.load_state_dict(adapters | base, assign=True)

    def forward(self, text: Tensor) -> Tensor:
        is_word = text != PAD
        longest = int(is_word.sum(dim=1).max())
        text, is_word = text[:, :longest], is_word[:, :longest]
        stream = self.norm(self.word(text) + self.position.weight[:longest] + self.token_type.weight[0])
        for layer in self.layers:
            stream = layer(stream, is_word)
        mean: Tensor = (stream * is_word[:, :, None]).sum(dim=1) / is_word.sum(dim=1, keepdim=True)
        return mean


def _renamed(name: str) -> str:
    for published, ours in _NAMES.items():
        name = re.sub(published, ours, name)
    return name
