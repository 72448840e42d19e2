"""The pretrained encoder: its published similarities, its adapters, its tokenizer, and the texts that it reads."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import MinilmLora
from trainers.training.replica import Replica
from trainers.workload import WorkloadError
from trainers.workloads import docstrings
from trainers.workloads.word_piece import WordPiece

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cafe", "ten", "tens", "##or", "##s", "_", ".", "##sor"]
UNKNOWN, FIRST, LAST = 1, 2, 3


def _weights(small_data: Path) -> Path:
    return small_data / "all-MiniLM-L6-v2" / "model.safetensors"


def test_sentences_are_as_similar_as_the_models_card_says():
    """The card: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, as in the quickstart of sbert.net."""
    try:
        folder = docstrings.pretrained()
    except WorkloadError as error:
        pytest.skip(str(error))
    encoder = docstrings.read_encoder(folder / "model.safetensors", rank=8)
    word_piece = docstrings.read_vocabulary(folder / "vocab.txt")
    sentences = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    encoded = [torch.tensor(word_piece.encode(sentence, 32)) for sentence in sentences]

    with torch.no_grad():
        vectors = encoder(torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True))

    unit = torch.nn.functional.normalize(vectors)
    published = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    torch.testing.assert_close(unit @ unit.T, published, atol=1e-4, rtol=0)


def test_a_text_has_the_same_vector_beside_longer_ones(small_data: Path):
    encoder = docstrings.read_encoder(_weights(small_data), rank=2)
    short, long = [2, 5, 3], [2, 5, 6, 7, 8, 3]

    with torch.no_grad():
        alone = encoder(torch.tensor([short]))
        beside = encoder(torch.tensor([[*short, 0, 0, 0], long]))[:1]

    torch.testing.assert_close(beside, alone)


def test_adapters_of_any_rank_begin_as_the_published_encoder(small_data: Path):
    text = torch.tensor([[2, 5, 6, 3]])

    with torch.no_grad():
        narrow, wide = (docstrings.read_encoder(_weights(small_data), rank=rank)(text) for rank in (1, 64))

    assert torch.equal(narrow, wide)


def test_training_changes_every_adapter_and_the_classifier_and_no_published_weight(
    make_config: Callable[..., ReplicaConfig], small_data: Path
):
    replica = Replica(make_config(workload=MinilmLora(batch_size=8, max_tokens=16)), 0, 1, device="cpu")
    before = {name: each.detach().clone() for name, each in replica.model.named_parameters()}

    replica.run(Segment(num_steps=2, learning_rate=0.1))  # in the first, `up` is 0 and `down` has no gradient

    changed = {name for name, each in replica.model.named_parameters() if not torch.equal(each, before[name])}
    assert changed == {name for name in before if name.endswith((".down", ".up")) or name.startswith("1.")}
    assert len(changed) == len(replica.shapes)  # what is exchanged


def test_other_weights_are_refused_with_their_file(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    save_file({"embeddings.word_embeddings.weight": torch.zeros(3, 4)}, path)

    with pytest.raises(WorkloadError, match=f"{path} does not hold the weights of all-MiniLM-L6-v2"):
        docstrings.read_encoder(path, rank=2)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("ten", ["ten"]),
        ("TENS", ["tens"]),  # the longest first
        ("tensor", ["tens", "##or"]),
        ("café.", ["cafe", "."]),
        ("ten_cafe", ["ten", "_", "cafe"]),
        ("tent ten", ["[UNK]", "ten"]),
        ("t" * 101, ["[UNK]"]),
    ],
)
def test_words_become_the_longest_pieces_known(text: str, pieces: list[str]):
    assert WordPiece(VOCABULARY).encode(text, 32) == [FIRST, *(VOCABULARY.index(piece) for piece in pieces), LAST]


def test_a_long_text_is_cut_and_keeps_its_last_mark():
    encoded = WordPiece(VOCABULARY).encode("ten " * 50, 8)

    assert (len(encoded), encoded[0], encoded[-1]) == (8, FIRST, LAST)


def test_another_vocabulary_is_refused_with_its_file(tmp_path: Path):
    path = tmp_path / "vocab.txt"
    path.write_text("the\nof\n")

    with pytest.raises(WorkloadError, match=f"{path} is not the vocabulary"):
        docstrings.read_vocabulary(path)


def test_a_text_counts_once_and_tests_are_not_read(small_data: Path):
    texts, topics = docstrings.read_docstrings(small_data / "scipy")

    assert len(texts) == len(set(texts)) == 20
    assert {docstrings.TOPICS[topic] for topic in topics} == {"linalg", "stats"}


def test_a_scipy_without_source_is_said_to_be_so(tmp_path: Path):
    with pytest.raises(WorkloadError, match="no source"):
        docstrings.read_docstrings(tmp_path)
