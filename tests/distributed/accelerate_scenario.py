"""A loop of Accelerate in one piece, and one that saves and resumes: torchrun accelerate_scenario.py FOLDER."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from wiretune import attach
from wiretune.accelerate import checkpointing

KINDS: dict[str, dict[str, Any]] = {
    "topk": {"exchange": {"kind": "topk", "density": 0.1}},
    "local_sgd": {"sync": {"kind": "local_sgd", "period": 4}},
    "cser": {"exchange": {"kind": "cser"}},
}


class Loop:
    """A script that trains by Accelerate."""

    def __init__(self, how: dict[str, Any]) -> None:
        self.accelerator = Accelerator(cpu=True)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.model, self.optimizer = self.accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05))
        self.handle = attach(self.model, self.optimizer, **how)
        checkpointing(self.accelerator, self.model, self.handle)

    def train(self, steps: range) -> "Loop":
        for step in steps:
            draws = torch.Generator().manual_seed(2 * step + self.accelerator.process_index)
            inputs = torch.randn(16, 8, generator=draws)
            self.optimizer.zero_grad()
            self.accelerator.backward((self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean())
            self.optimizer.step()
        return self

    @property
    def sums(self) -> list[float]:
        return [each.detach().double().sum().item() for each in self.model.parameters()]


def main(folder: Path) -> None:
    found = {}
    for kind, how in KINDS.items():
        place = folder / kind
        first = Loop(how).train(range(6))
        before = first.sums
        first.accelerator.save_state(place)
        kept = first.sums == before
        first.train(range(6, 12))
        second = Loop(how)
        second.accelerator.load_state(place)
        found[kind] = {
            "whole": first.sums,
            "resumed": second.train(range(6, 12)).sums,
            "kept": kept,
            "files": sorted(each.name for each in place.glob("wiretune-*.pt")),
        }
    (folder / f"rank-{first.accelerator.process_index}.json").write_text(json.dumps(found))
    first.accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
