"""Checkpoints of Accelerate, with a stand-in for its Accelerator, in one process."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from wiretune import attach
from wiretune.accelerate import checkpointing


class Accelerator:
    """Saves and loads one model in the order of `accelerate.Accelerator`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._saving: list[Callable[..., None]] = []
        self._loading: list[Callable[..., None]] = []
        self._objects: list[Any] = []

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> None:
        self._saving.append(hook)

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> None:
        self._loading.append(hook)

    def register_for_checkpointing(self, *objects: Any) -> None:
        self._objects += objects

    def save_state(self, folder: Path) -> None:
        weights = [self._model.state_dict()]
        for hook in self._saving:
            hook([self._model], weights, str(folder))
        torch.save(weights[0], folder / "model.pt")
        for number, each in enumerate(self._objects):
            torch.save(each.state_dict(), folder / f"custom_checkpoint_{number}.pkl")

    def load_state(self, folder: Path) -> None:
        for hook in self._loading:
            hook([self._model], str(folder))
        self._model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        for number, each in enumerate(self._objects):
            each.load_state_dict(torch.load(folder / f"custom_checkpoint_{number}.pkl", weights_only=True))


class Loop:
    """A script of one process whose other ranks are where the mean of all is 0."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.handle = attach(self.model, self.optimizer, sync={"kind": "local_sgd", "period": 100})
        self.handle.means = lambda: {"weight": torch.zeros_like(self.model.weight)}  # type: ignore[method-assign]
        self.accelerator = Accelerator(self.model)
        checkpointing(self.accelerator, self.model, self.handle)

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(1, 4)).square().sum().backward()
            self.optimizer.step()


def test_accelerate_saves_the_mean_and_each_rank_its_own(tmp_path: Path):
    first, second = Loop(0), Loop(1)
    first.train(3)
    own = first.model.weight.clone()

    first.accelerator.save_state(tmp_path)

    assert torch.equal(first.model.weight, own)
    assert not torch.load(tmp_path / "model.pt", weights_only=True)["weight"].any()
    second.accelerator.load_state(tmp_path)
    assert torch.equal(second.model.weight, own)
    assert second.handle._steps.taken == 3


def test_a_model_that_is_lent_the_mean_keeps_it_over_a_checkpoint(tmp_path: Path):
    loop = Loop(0)

    with loop.handle.averaged():
        loop.accelerator.save_state(tmp_path)
        assert not loop.model.weight.any()

    assert loop.model.weight.any()


def test_a_rank_that_cannot_save_goes_on_from_its_own_parameters(tmp_path: Path):
    loop = Loop(0)
    before = loop.model.weight.clone()
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        loop.accelerator.save_state(tmp_path / "file")

    assert torch.equal(loop.model.weight, before)


@pytest.mark.parametrize("trains_on", [False, True])
def test_a_save_that_others_did_not_finish_leaves_nothing_lent_to_the_next(tmp_path: Path, trains_on: bool):
    loop = Loop(0)
    [save] = loop.accelerator._saving
    own = loop.model.weight.clone()
    save([loop.model], [], str(tmp_path))  # and then Accelerate fails
    if trains_on:
        loop.train(1)
        own = loop.model.weight.clone()
    asked = list[bool]()
    loop.handle.means = lambda: asked.append(True) or {"weight": torch.zeros_like(own)}  # type: ignore[method-assign]

    loop.accelerator.save_state(tmp_path)

    assert asked == [True]  # as on the ranks whose last save was whole
    assert torch.equal(loop.model.weight, own)


def test_a_memory_beside_other_weights_is_left_alone_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    first, second = Loop(0), Loop(1)
    first.train(3)
    first.accelerator.save_state(tmp_path)
    torch.save(nn.Linear(4, 1).state_dict(), tmp_path / "model.pt")

    with caplog.at_level(logging.WARNING):
        second.accelerator.load_state(tmp_path)

    assert second.handle._steps.taken == 0
    assert "has lost its memory" in caplog.text
