"""Tasks unlike those of `tasks.py`: raw inputs and targets, losses below 0 or far above it, unusual nets and starts.

Each is trained with SGD and with AdamW, and is a family of its own. The data are those of the suite, statsmodels'
sunspots, and three sets that are made up.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from statsmodels.datasets import sunspots as sunspots_table
from torch import Tensor, nn
from torch.nn import functional

from suite import nets, tasks
from suite.nets import CONTEXT, perceptron
from suite.tasks import PER_CLASS, Data, Loss, Task

NUM_LETTERS, NUM_PHONES = 27, 64  # with the 0 that pads or ends a word
NUM_PEOPLE, NUM_FILMS = 300, 200


# -- data --------------------------------------------------------------------------------------------------


@cache
def digits_twice() -> Data:
    """Return images of digits as both inputs and targets `(n, 64)`."""
    images = tasks.digits()[0].flatten(1)
    return images, images


@cache
def digit_pixels() -> Data:
    """Return digits as sequences of pixels `(n, 64, 1)`, and which digit each is."""
    images, labels = tasks.digits()
    return images.flatten(1).unsqueeze(-1), labels


@cache
def mnist_bytes() -> Data:
    """Return MNIST's images with pixels up to 255."""
    images, labels = tasks.mnist()
    return 255 * images, labels


@cache
def raw(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Data:
    """Return a table of scikit-learn whose columns are as they were measured, and its classes."""
    inputs, labels = load(return_X_y=True)
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)


@cache
def raw_progress() -> Data:
    """Return ten measures of people with diabetes, and its progress, between 25 and 346."""
    inputs, progress = load_diabetes(return_X_y=True)
    return tasks.standardised(inputs), torch.tensor(progress[:, None], dtype=torch.float32)


@cache
def prices() -> Data:
    """Return what is known of diamonds, and their prices in thousands of dollars."""
    return tasks.diamonds()[0], torch.tensor([[float(row["price"]) / 1000] for row in tasks.rows_of("diamonds.csv")])


@cache
def letter_pairs() -> Data:
    """Return which pairs of letters each of 5,564 words has `(n, 729)`, and its stressed vowel."""
    letters, vowels = (each[::7] for each in tasks.words())
    pairs = NUM_LETTERS * letters[:, :-1] + letters[:, 1:]
    return torch.zeros(len(pairs), NUM_LETTERS**2).scatter_(1, pairs, 1.0), vowels


@cache
def phone_pairs() -> Data:
    """Return phones, and the phone after each."""
    windows = tasks.phones()[0][::7]
    return windows[:, :-1].flatten(), windows[:, 1:].flatten()


@cache
def ratings() -> Data:
    """Return pairs of a person and a film `(n, 2)`, and ratings made up of four factors, biases and noise."""
    rng = np.random.default_rng(0)
    tastes, traits = rng.normal(size=(NUM_PEOPLE, 4)), rng.normal(size=(NUM_FILMS, 4))
    leniency, quality = rng.normal(size=NUM_PEOPLE) / 2, rng.normal(size=NUM_FILMS) / 2
    who, what = rng.integers(0, NUM_PEOPLE, 20_000), rng.integers(0, NUM_FILMS, 20_000)
    rated = 3.5 + leniency[who] + quality[what] + 0.4 * (tastes[who] * traits[what]).sum(1)
    rated += 0.3 * rng.normal(size=20_000)
    return torch.tensor(np.stack([who, what], 1)), torch.tensor(rated[:, None], dtype=torch.float32)


@cache
def waves() -> Data:
    """Return places `(n, 2)` in [-1, 1], and a product of waves with a little noise."""
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, (4000, 2))
    heights = np.sin(6 * places[:, :1]) * np.cos(4 * places[:, 1:]) + 0.05 * rng.normal(size=(4000, 1))
    return torch.tensor(places, dtype=torch.float32), torch.tensor(heights, dtype=torch.float32)


@cache
def noisy_pairs() -> Data:
    """Return two noisy copies of each of Fashion-MNIST's images `(n, 2, 196)`; the targets say nothing."""
    images, random = tasks.fashion()[0].flatten(1), torch.Generator().manual_seed(0)
    copies = images.unsqueeze(1) + 0.3 * torch.randn(len(images), 2, 196, generator=random)
    return copies, torch.zeros(len(images), dtype=torch.long)


@cache
def sunspots() -> Data:
    """Return 24 years of standardised sunspots `(n, 24, 1)`, and those of the year after."""
    activity = tasks.standardised(sunspots_table.load_pandas().data["SUNACTIVITY"].to_numpy())
    windows = activity.unfold(0, 25, 1)
    return windows[:, :-1, None].clone(), windows[:, -1:].clone()


@cache
def circles() -> Data:
    """Return noisy images `(n, 1, 16, 16)` of a disk each, and the disks."""
    rng, count = np.random.default_rng(0), 2000
    rows, columns = np.mgrid[:16, :16]
    centres, radii = rng.uniform(3, 13, (count, 2, 1, 1)), rng.uniform(1.5, 4, (count, 1, 1))
    disks = (columns - centres[:, 0]) ** 2 + (rows - centres[:, 1]) ** 2 < radii**2
    images = disks * rng.uniform(0.3, 1, (count, 1, 1)) + 0.4 * rng.normal(size=disks.shape)
    return torch.tensor(images[:, None], dtype=torch.float32), torch.tensor(disks[:, None], dtype=torch.float32)


# -- models ------------------------------------------------------------------------------------------------


class VariationalAutoencoder(nn.Module):
    """Returns the decoded sample `(b, 64)`, and beside it the mean and the log variance of what was sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(64, 48, 16), perceptron(8, 48, 64)

    def forward(self, images: Tensor) -> Tensor:
        mean, log_variance = self.encoder(images).chunk(2, dim=-1)
        sample = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        return torch.cat([self.decoder(sample), mean, log_variance], dim=-1)


class SkipGram(nn.Module):
    """Scores neighbours by products of two embeddings (Mikolov et al., 2013)."""

    def __init__(self) -> None:
        super().__init__()
        self.phones, self.neighbours = nn.Embedding(NUM_PHONES, 16), nn.Embedding(NUM_PHONES, 16)

    def forward(self, phones: Tensor) -> Tensor:
        scores: Tensor = self.phones(phones) @ self.neighbours.weight.T
        return scores


class Factors(nn.Module):
    """A product of two embeddings, and biases (Koren, Bell and Volinsky, 2009)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tastes, self.traits = nn.Embedding(NUM_PEOPLE, width), nn.Embedding(NUM_FILMS, width)
        self.leniency, self.quality = nn.Embedding(NUM_PEOPLE, 1), nn.Embedding(NUM_FILMS, 1)
        self.mean = nn.Parameter(torch.zeros(1))
        for embedding, std in ((self.tastes, 0.1), (self.traits, 0.1), (self.leniency, 0.0), (self.quality, 0.0)):
            nn.init.normal_(embedding.weight, std=std)

    def forward(self, pairs: Tensor) -> Tensor:
        who, what = pairs.unbind(1)
        liking = (self.tastes(who) * self.traits(what)).sum(1, keepdim=True)
        rated: Tensor = liking + self.leniency(who) + self.quality(what) + self.mean
        return rated


class Mixing(nn.Module):
    """A hidden layer across places and one across channels, each scaled (Tolstikhin et al.; Touvron et al., 2021)."""

    def __init__(self, num_places: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.places, self.channels = (
            nn.Sequential(nn.Linear(size, 64), nn.GELU(), nn.Linear(64, size)) for size in (num_places, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.scale * self.places(self.norms[0](stream).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = stream + self.scale * self.channels(self.norms[1](stream))
        return mixed


class Mixer(nn.Module):
    """Blocks that mix the patches of a grey image, two pixels wide."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(1, width, 2, 2), nn.Linear(width, 10)
        self.blocks = nn.Sequential(*(Mixing(49, width) for _ in range(2)))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.embed(images).flatten(2).transpose(1, 2)).mean(1))
        return scores


class Siamese(nn.Module):
    """Scores how alike the first copies `(b, 2, 196)` are to the second ones, at a temperature of 0.2."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = perceptron(196, 96, 32)

    def forward(self, pairs: Tensor) -> Tensor:
        codes = functional.normalize(self.encoder(pairs.flatten(0, 1)), dim=-1)
        return codes[::2] @ codes[1::2].T / 0.2


class Reader(nn.Module):
    """A recurrent net over numbers `(b, t, 1)`, and a linear layer at the last."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], width: int, num_outputs: int) -> None:
        super().__init__()
        self.cell, self.head = cell(1, width, batch_first=True), nn.Linear(width, num_outputs)

    def forward(self, numbers: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(numbers)[0][:, -1])
        return scores


class UNet(nn.Module):
    """Two resolutions with a connection across (Ronneberger, Fischer and Brox, 2015)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fine, self.merge = _conv_norm(1, width), _conv_norm(3 * width, width)
        self.coarse = nn.Sequential(_conv_norm(width, 2 * width), _conv_norm(2 * width, 2 * width))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        coarse = functional.interpolate(self.coarse(functional.max_pool2d(fine, 2)), scale_factor=2)
        scores: Tensor = self.head(self.merge(torch.cat([fine, coarse], 1)))
        return scores


def _conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class PostNorm(nn.Module):
    """A causal transformer with dropout, and layer normalisation after each part (Vaswani et al., 2017)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        block = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        stream = self.blocks(self.bytes(text) + self.places[:length], mask=mask, is_causal=True)
        scores: Tensor = self.head(stream)
        return scores


def small_start() -> nn.Sequential:
    """Return a perceptron whose weights begin at 0.02, as in transformers, which is small for it."""
    net = perceptron(196, 64, 64, 10)
    for name, parameter in net.named_parameters():
        nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.normal_(parameter, std=0.02)
    return net


def zero_head() -> nn.Sequential:
    """Return a perceptron whose last layer begins at zero."""
    net = perceptron(196, 64, 64, 10)
    for parameter in net[-1].parameters():
        nn.init.zeros_(parameter)
    return net


# -- losses ------------------------------------------------------------------------------------------------


def evidence_bound(scores: Tensor, images: Tensor) -> Tensor:
    """Return the negative evidence lower bound in nats per image (Kingma and Welling, 2014)."""
    decoded, mean, log_variance = torch.split(scores, [64, 8, 8], dim=1)
    coded = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
    return (functional.binary_cross_entropy_with_logits(decoded, images, reduction="none").sum(1) + coded).mean()


def gaussian(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood by a predicted mean and variance, which falls below 0."""
    return functional.gaussian_nll_loss(scores[:, :1], targets, functional.softplus(scores[:, 1:]) + 1e-3)


def infonce(scores: Tensor, _: Tensor) -> Tensor:
    """Return how well each first copy finds its second one, among those of the batch (van den Oord et al., 2018)."""
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def dice(scores: Tensor, disks: Tensor) -> Tensor:
    """Return 1 less the overlap of what is found and what is there (Milletari et al., 2016)."""
    found = scores.sigmoid()
    shared, both = (found * disks).sum((1, 2, 3)), (found + disks).sum((1, 2, 3))
    return (1 - (2 * shared + 1) / (both + 1)).mean()


def smoothed(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores, targets, label_smoothing=0.1)


def raised(scores: Tensor, targets: Tensor) -> Tensor:
    """Return a loss that cannot fall below 3."""
    return functional.cross_entropy(scores, targets) + 3


# -- tasks -------------------------------------------------------------------------------------------------


def dropping() -> nn.Sequential:
    return perceptron(196, 128, 64, 10, activation=lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))


def layer_normed() -> nn.Sequential:
    return perceptron(196, 64, 64, 10, activation=lambda: nn.Sequential(nn.LayerNorm(64), nn.GELU()))


def _both(
    name: str, data: Callable[[], Data], model: Callable[[], nn.Module], loss: Loss = PER_CLASS, batch_size: int = 32
) -> Iterator[Task]:
    """Yield a task with each optimizer; their guesses are rough, since `odd.py` finds others."""
    task = Task(f"{name}-sgd", name, "sgd", 0.1, data, model, loss, batch_size)
    yield task
    yield replace(task, name=f"{name}-adamw", optimizer="adamw", guess=3e-3, weight_decay=0.01)


_MSE: Loss = functional.mse_loss
ODD_TASKS: dict[str, Task] = {
    task.name: task
    for both in (
        _both("autoencoder-digits", digits_twice, lambda: perceptron(64, 32, 8, 32, 64), _MSE),
        _both("vae-digits", digits_twice, VariationalAutoencoder, evidence_bound),
        _both("linear-bag", letter_pairs, lambda: nn.Linear(NUM_LETTERS**2, 15)),
        _both("raw-mnist", mnist_bytes, nets.fashion_net),
        _both("raw-wine", partial(raw, load_wine), lambda: perceptron(13, 32, 3), batch_size=16),
        _both("raw-tumours", partial(raw, load_breast_cancer), lambda: perceptron(30, 32, 2)),
        _both("rawtarget-diabetes", raw_progress, nets.patient_net, _MSE),
        _both("price-l1", prices, nets.diamond_pricer, functional.l1_loss, 64),
        _both("price-huber", prices, nets.diamond_pricer, functional.huber_loss, 64),
        _both("skipgram-phones", phone_pairs, SkipGram, batch_size=128),
        _both("ratings-factors", ratings, Factors, _MSE, 128),
        _both("waves-silu", waves, lambda: perceptron(2, 64, 64, 1, activation=nn.SiLU), _MSE, 64),
        _both("waves-tanh", waves, lambda: perceptron(2, 48, 48, 48, 1, activation=nn.Tanh), _MSE, 64),
        _both("waves-nll", waves, lambda: perceptron(2, 64, 64, 2, activation=nn.SiLU), gaussian, 64),
        _both("mixer-fashion", tasks.fashion, Mixer),
        _both("smooth-fashion", tasks.fashion, nets.residual, smoothed, 64),
        _both("dropout-mnist", tasks.mnist, dropping, batch_size=64),
        _both("infonce-fashion", noisy_pairs, Siamese, infonce, 64),
        _both("sunspots-lstm", sunspots, lambda: Reader(nn.LSTM, 24, 1), _MSE, 16),
        _both("pixels-gru", digit_pixels, lambda: Reader(nn.GRU, 32, 10)),
        _both("hinge-mnist", tasks.mnist, nets.fashion_net, functional.multi_margin_loss),
        _both("circles-dice", circles, UNet, dice, 16),
        _both("smallinit-mnist", tasks.mnist, small_start),
        _both("zerohead-fashion", tasks.fashion, zero_head),
        _both("layernorm-fashion", tasks.fashion, layer_normed),
        _both("postnorm-manual", tasks.manual, PostNorm, tasks.per_byte, 8),
        _both("offset-mnist", tasks.mnist, nets.fashion_net, raised),
    )
    for task in both
}
