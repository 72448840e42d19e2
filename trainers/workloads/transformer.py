"""A causal transformer over bytes, with the norms before the layers, and the embedding as output layer.

Symbols: b windows, t positions, w width of the stream.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainers.traffic.shapes import NUM_BYTES, Transformer

#: Standard deviation of the first weights, as in GPT-2 (Radford et al., 2019).
INITIAL_STD = 0.02


class ByteTransformer(nn.Module):
    """Maps bytes `(b, t)` (int64), t <= `context`, to scores of the next byte `(b, t, 256)`."""

    def __init__(self, size: Transformer, context: int, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(NUM_BYTES, size.width)
        self.positions = nn.Embedding(context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.num_blocks))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, NUM_BYTES, bias=False)
        self.apply(_initialise)
        # What the blocks add is scaled, so that the stream's variance does not grow with their number (GPT-2).
        for name, parameter in self.blocks.named_parameters():
            if name.endswith(("attended.weight", "contract.weight")):
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(2 * len(self.blocks)))
        self.head.weight = self.embedding.weight

    def forward(self, text: Tensor) -> Tensor:
        stream = self.embedding(text) + self.positions.weight[: text.shape[1]]
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                stream = checkpoint(block, stream, use_reentrant=False)
            else:
                stream = block(stream)
        scores: Tensor = self.head(self.norm(stream))
        return scores


class Block(nn.Module):
    """Attention to earlier bytes, then a hidden layer; each adds to the stream `(b, t, w)`."""

    def __init__(self, size: Transformer) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.projections = nn.Linear(size.width, 3 * size.width)  # queries, keys, values
        self.attended = nn.Linear(size.width, size.width)
        self.hidden_norm = nn.LayerNorm(size.width)
        self.expand = nn.Linear(size.width, 4 * size.width)
        self.contract = nn.Linear(4 * size.width, size.width)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self._attend(self.attention_norm(stream))
        hidden = nn.functional.gelu(self.expand(self.hidden_norm(stream)))
        added: Tensor = self.contract(hidden)
        return stream + added

    def _attend(self, stream: Tensor) -> Tensor:
        b, t, w = stream.shape
        heads = self.projections(stream).view(b, t, 3, self.num_heads, w // self.num_heads)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)  # each (b, heads, t, w / heads)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        attended: Tensor = self.attended(mixed.transpose(1, 2).reshape(b, t, w))
        return attended


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
