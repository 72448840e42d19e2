"""The callback for the Trainer of transformers, which is attached once; a stand-in takes that package's place."""

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

ARGUMENTS = SimpleNamespace(max_grad_norm=1.0)


@pytest.fixture
def callback_type(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    package: Any = ModuleType("transformers")
    package.Trainer = package.TrainerCallback = package.TrainingArguments = object
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
    callback.on_train_begin(ARGUMENTS)
    handle = callback.handle

    callback.on_train_begin(ARGUMENTS)

    assert callback.handle is handle
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_another_optimizer_is_attached_anew(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin(ARGUMENTS)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    callback.on_train_begin(ARGUMENTS)

    assert callback.handle.optimizer is trainer.optimizer


@pytest.mark.parametrize("kind", ["demo", "cser", "liec_sgd"])
def test_clipping_is_refused_where_it_would_part_the_ranks(callback_type: type[Any], kind: str):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, exchange={"kind": kind})

    with pytest.raises(ValueError, match=f"`max_grad_norm` must be 0 with `{kind}`.* got 1: "):
        callback.on_train_begin(ARGUMENTS)

    assert not trainer.optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("max_grad_norm", [0.0, None])
def test_without_clipping_such_an_exchange_is_attached(callback_type: type[Any], max_grad_norm: float | None):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, exchange={"kind": "cser"})

    callback.on_train_begin(SimpleNamespace(max_grad_norm=max_grad_norm))

    assert callback.handle.config.exchange.kind == "cser"
