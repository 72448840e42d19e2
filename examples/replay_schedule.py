"""Train with a learned schedule in plain torch, on one machine with dense gradients: no Wiretune service, no Ray.

wiretune export JOB --out schedule.json
python examples/replay_schedule.py schedule.json
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from wiretune import Schedule, build_optimizer

BATCH_SIZE = 64  # of a step: 2 workers x 32
WORKLOAD = "digits-mlp"  # which this script trains
#: Their rates are those of a workload's own optimizer, or of the direction that an exchange makes.
NOT_ALONE = ("own", "from_exchange")


def main(path: Path) -> None:
    schedule = Schedule.from_json(path.read_text())
    if reason := conflict(schedule):
        sys.exit(reason)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = build_optimizer(model, optimizer_fields(schedule))
    inputs, held_out_inputs, targets, held_out_targets = digits()
    train(model, optimizer=optimizer, schedule=schedule, inputs=inputs, targets=targets)
    accuracy = evaluate(model, optimizer=optimizer, inputs=held_out_inputs, targets=held_out_targets)
    print(f"{schedule.num_steps} steps of {schedule.optimizer}: held-out accuracy {accuracy:.4f}")


def conflict(schedule: Schedule) -> str | None:
    """Return why this script cannot follow the schedule; None: it can. That of a loop does not say what it trained."""
    if schedule.optimizer in NOT_ALONE:
        return f"the rates are those of the optimizer `{schedule.optimizer}`, which this script does not have"
    if schedule.provenance is None:
        return None
    kind = schedule.provenance.job["workload"].get("kind", "own")
    if kind != WORKLOAD:
        return (
            f"the rates are those of the workload `{kind}`, and this script trains `{WORKLOAD}`: use `wiretune replay`"
        )
    if schedule.provenance.sample is not None:
        return "the rates are those of a sample, which differs from its job: use `wiretune replay`"
    return None


def optimizer_fields(schedule: Schedule) -> dict[str, Any]:
    """Return the kind and options of the optimizer. Those of a loop are in the schedule, those of a job in the job."""
    if schedule.provenance is None:
        return schedule.optimizer_fields
    job = schedule.provenance.job
    arm = next((each for each in job.get("arms", ()) if each["name"] == schedule.provenance.arm), {})
    given = arm.get("optimizer") or job.get("optimizer", {})
    competing = given.get("options", [given])  # of `auto`, several
    return next((each for each in competing if each.get("kind") == schedule.optimizer), schedule.optimizer_fields)


def digits() -> list[Tensor]:
    """Return inputs to train with and to hold out, then their targets."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    return train_test_split(inputs, targets, test_size=0.2, stratify=labels, random_state=0)


def train(
    model: nn.Module, *, optimizer: torch.optim.Optimizer, schedule: Schedule, inputs: Tensor, targets: Tensor
) -> None:
    scheduler = schedule.scheduler(optimizer, on_values=say_what_is_left_out)
    if is_schedule_free(optimizer):
        optimizer.train()  # the weights become those that gradients are taken at
    for step in range(schedule.num_steps):
        batch = torch.randint(len(inputs), (BATCH_SIZE,))
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(loss.item)  # ScheduleFree+ asks for the loss
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}, learning rate {scheduler.get_last_lr()[0]:.4g}")
        scheduler.step()


def say_what_is_left_out(values: Mapping[str, Any]) -> None:
    """Name what this loop does not follow: it has nobody to meet, and trains all of the model in each step."""
    if values:  # there are none where an entry has no more of them
        print(f"not followed here: {values}")


@torch.no_grad()
def evaluate(model: nn.Module, *, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    if is_schedule_free(optimizer):
        optimizer.eval()  # the weights become the average, which is the result
    return (model(inputs).argmax(dim=1) == targets).float().mean().item()


def is_schedule_free(optimizer: torch.optim.Optimizer) -> bool:
    return hasattr(optimizer, "eval")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
