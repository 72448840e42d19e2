"""The callback for the Trainer of transformers, which is attached once; a stand-in takes that package's place."""

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def callback_type(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    package: Any = ModuleType("transformers")
    package.Trainer = package.TrainerCallback = object
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "wiretune.transformers", None)  # put back afterwards
    del sys.modules["wiretune.transformers"]
    callback: type[Any] = import_module("wiretune.transformers").AttachCallback
    return callback


def test_a_second_training_goes_on_with_the_handle_of_the_first(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=optimizer)
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin()
    handle = callback.handle

    callback.on_train_begin()

    assert callback.handle is handle
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_another_optimizer_is_attached_anew(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin()
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    callback.on_train_begin()

    assert callback.handle.optimizer is trainer.optimizer
