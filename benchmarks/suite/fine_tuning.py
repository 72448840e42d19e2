"""Go on training models that were trained before, beside the best of a grid of rates with a linear decay.

    PYTHONPATH=benchmarks python benchmarks/suite/fine_tuning.py run [--seeds 0] [--part INDEX COUNT]
    PYTHONPATH=benchmarks python benchmarks/suite/fine_tuning.py table

A model of one task is trained for 1,000 steps at the best rate of its grid. Then it goes on with the data of another
task, or with the same ones in another order, for 300 steps. The sentence encoder all-MiniLM-L6-v2 comes trained, and
learns to tell SciPy's packages by their docstrings: all of it is trained, for 200 steps. The controller starts from the
best rate of the grid, and from a tenth and ten times of it. It has what the model tells, as in a job: the scale of its
weights, or its sharpness. Or it has probes alone. Results are lines of `fine_tuning.jsonl`; what is there is not run
again.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from rows import Json, read
from torch import Tensor, nn

from suite.controlled import searched
from suite.excess import LOST, ROWS, summarised
from suite.program import append_missing, arguments
from suite.run import GUESSES
from suite.tasks import TASKS, Task
from suite.training import SCHEDULES, Line
from trainers.spec.workloads import MinilmLora
from trainers.workloads.docstrings import Docstrings

FILE = Path(__file__).parent / "fine_tuning.jsonl"
NUM_STEPS, STEPS_BEFORE = 300, 1000
#: Rises of the rate at the start of the training before, so that deep models stand it.
RAMP_STEPS = 50
ENCODER, ENCODER_STEPS = "minilm", 200
#: The task whose model is trained before, and the one whose data it goes on with.
PAIRS = (
    ("manual-gpt", "docstrings-gpt"), ("docstrings-gpt", "manual-gpt"), ("phones-gpt", "manual-gpt"),
    ("source-transformer", "characters-transformer"), ("characters-transformer", "source-transformer"),
    ("phones-transformer", "source-transformer"), ("source-gru", "manual-gru"), ("manual-gru", "characters-gru"),
    ("fashion-residual-adamw", "mnist-residual"), ("mnist-conv-norm-adamw", "fashion-conv-norm"),
    ("mnist-perceptron-adamw", "fashion-perceptron"), ("mnist-lenet-adamw", "fashion-conv"),
    ("manual-gpt", "manual-gpt"), ("source-transformer", "source-transformer"), ("source-gru", "source-gru"),
    ("fashion-residual-adamw", "fashion-residual-adamw"), ("mnist-perceptron-adamw", "mnist-perceptron-adamw"),
    (ENCODER, ENCODER),
    ("mnist-conv", "fashion-conv"), ("fashion-conv", "mnist-conv"), ("mnist-perceptron", "fashion-perceptron"),
    ("fashion-perceptron", "mnist-perceptron"), ("mnist-residual", "fashion-residual-adamw"),
    ("fashion-conv-norm", "mnist-conv-norm-adamw"), ("source-neighbours", "manual-neighbours"),
    ("manual-neighbours", "phones-neighbours"), ("phones-neighbours", "source-neighbours"),
    ("mnist-conv", "mnist-conv"), ("mnist-perceptron", "mnist-perceptron"), ("source-neighbours", "source-neighbours"),
    ("fashion-conv-norm", "fashion-conv-norm"), ("houses-perceptron", "houses-perceptron"),
)  # fmt: skip
#: Half decades of rates.
GRID = {"adamw": range(-9, -2), "sgd": range(-7, 1)}
ARMS = "by the model", "by probes"


@cache
def docstrings() -> tuple[Tensor, Tensor]:
    """Return the ids of the words of SciPy's docstrings, and which package each is from."""
    workload = Docstrings(MinilmLora(max_tokens=32))
    parts = [part.tensors for part in (workload.training, workload.validation)]
    inputs, topics = (torch.cat(each) for each in zip(*parts, strict=True))
    return inputs, topics


def encoder() -> nn.Module:
    """Return the encoder with all of its weights trained, but without adapters, and a new layer that classifies."""
    model = Docstrings(MinilmLora(max_tokens=32, rank=1)).model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith((".down", ".up")))
    return model


def task_of(before: str, after: str) -> Task:
    if before == ENCODER:
        return Task(ENCODER, "docstrings", "adamw", 1e-3, docstrings, encoder, batch_size=16, weight_decay=0.01)
    own = TASKS[before]
    return replace(
        TASKS[after],
        name=f"{before}, {after}",
        model=own.model,
        optimizer=own.optimizer,
        weight_decay=own.weight_decay,
    )


@cache
def trained(task: str, seed: int) -> dict[str, Tensor]:
    """Return the weights of a task's model after its training, whose data and draws are those of another seed."""
    line = Line(TASKS[task], seed + 100)
    grid = [row for row in read(ROWS) if row["what"] == "grid" and row["task"] == task and row["arm"] == "linear"]
    steps = min((row["steps"] for row in grid), key=lambda each: abs(each - STEPS_BEFORE))
    rate = min((row for row in grid if row["steps"] == steps), key=lambda row: float(row["loss"]))["rate"]
    decay = SCHEDULES["linear"]
    line.train([rate * min(1, step / RAMP_STEPS) * decay(step / STEPS_BEFORE) for step in range(1, STEPS_BEFORE)])
    return line.model.state_dict()


def start(before: str, after: str, seed: int) -> Line:
    line = Line(task_of(before, after), seed)
    return line if before == ENCODER else line.with_weights(trained(before, seed))


def run(seeds: Sequence[int], part: Sequence[int]) -> None:
    append_missing(FILE, [{"pair": [*pair], "seed": seed} for seed in seeds for pair in PAIRS], part, measured)


def measured(pair: tuple[str, str], seed: int) -> Json:
    """Return the best of the grid, and what each arm exports from each guess."""
    steps = ENCODER_STEPS if pair[0] == ENCODER else NUM_STEPS
    rates = GRID[task_of(*pair).optimizer]
    grid = {rate: _decayed(start(*pair, seed), 10 ** (rate / 2), steps) for rate in rates}
    best = min(grid, key=lambda rate: grid[rate])
    row: Json = {"best": grid[best], "rate": best / 2}
    for arm in ARMS:
        row[arm] = {
            guess: _searched(start(*pair, seed), 10 ** (best / 2) * factor, steps, seed, arm)
            for guess, factor in GUESSES.items()
        }
    return row


def _decayed(line: Line, rate: float, steps: int) -> float:
    losses = line.train([rate * SCHEDULES["linear"](step / steps) for step in range(steps)])
    loss = line.evaluate() if len(losses) == steps else math.inf
    return loss if math.isfinite(loss) else math.inf


def _searched(line: Line, guess: float, steps: int, seed: int, arm: str) -> dict[str, float]:
    done = searched(line, guess, steps, seed, told=arm == "by the model")
    return {"exported": done.flattered, "rate": math.log10(done.decisions[0].values.learning_rate)}


def table() -> None:
    """Print how far above the best of the grid runs end, by pair and of all."""
    cells = defaultdict[tuple[str, str], list[float]](list)
    print(
        "| trained on | then on | best rate, log10 | by the model, in %: mean, worst | by probes |\n"
        + "| --- " * 5
        + "|"
    )
    for pair in PAIRS:
        found = [row for row in read(FILE) if tuple(row["pair"]) == pair]
        told = []
        for arm in ARMS:
            above = [each["exported"] / row["best"] - 1 for row in found for each in row[arm].values()]
            cells[task_of(*pair).optimizer, arm] += above
            told.append(f"{100 * statistics.fmean(above):+.0f}, {100 * max(above):+.0f}" if above else "-")
        rates = ", ".join(f"{row['rate']:.1f}" for row in found)
        print(f"| {pair[0]} | {pair[1]} | {rates} | {told[0]} | {told[1]} |")
    for (optimizer, arm), above in ((key, each) for key, each in cells.items() if each):
        ends = summarised(above)
        print(f"{optimizer}, {arm}: mean {100 * ends.mean:+.1f} %, median {100 * ends.median:+.1f} %, ", end="")
        print(f"{ends.lost} of {ends.num_runs} at least {LOST:.0%} above")


def main() -> None:
    given = arguments(__doc__, seeds=(0,))
    run(given.seeds, given.part) if given.what == "run" else table()


if __name__ == "__main__":
    main()
