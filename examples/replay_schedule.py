"""Train with a learned schedule in plain torch: no Wiretune service, no Ray.

wiretune export JOB --out schedule.json
python examples/replay_schedule.py schedule.json
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from search.schedule import Schedule


def main(path: Path) -> None:
    schedule = Schedule.from_json(path.read_text())
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=schedule.learning_rate_at(0), momentum=0.9)
    scheduler = schedule.scheduler(optimizer)
    generator = torch.Generator().manual_seed(0)
    for step in range(schedule.num_steps):
        batch = torch.randint(len(inputs), (64,), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}, learning rate {scheduler.get_last_lr()[0]:.4g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
