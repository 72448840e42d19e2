"""An exchange that changes between steps, on one rank."""

import pytest
import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.auto.exchange import AutoExchange
from trainers.methods.exchange.auto.spec import AutoConfig, Option, by_kind, exchange_of
from trainers.segment import Segment
from trainers.snapshot import Kept
from trainers.training.replica import Replica

AUTO = AutoConfig(options=("none", "threshold 0.1", "powersgd 1"))
SHAPES = [(20, 20), (20,)]
D = 420


def _exchange() -> tuple[AutoExchange, GradientBuffer]:
    buffer, connection = GradientBuffer(SHAPES, AUTO, torch.device("cpu")), Connection(1, Unpaced(), Ledger())
    options = by_kind([Option.parse(name) for name in AUTO.options or ()])
    kinds = {kind: build.exchange(exchange_of(each, like=AUTO), buffer, connection) for kind, each in options.items()}
    return AutoExchange(kinds, buffer), buffer


def _step(of: AutoExchange, buffer: GradientBuffer, gradient: Tensor) -> Tensor:
    buffer.expect()
    buffer.gradient.copy_(gradient)
    buffer.finish()
    of.step(torch.tensor(1.0), None, 0.1)
    return buffer.gradient.clone()


def _gone_on_with(old: list[AutoExchange]) -> tuple[AutoExchange, GradientBuffer]:
    new, buffer = _exchange()
    for index, each in enumerate(old):
        new.inherit(Kept(each.tensors(), each.scalars(), index, len(old)))
    return new, buffer


@pytest.mark.parametrize("changes", [False, True], ids=["in force", "right after a change"])
def test_other_workers_send_the_mean_of_what_the_old_ones_had_not_sent(changes: bool):
    old, total = [_exchange() for _ in range(2)], torch.zeros(D)
    for number, (each, buffer) in enumerate(old):
        gradient = torch.randn(D, generator=torch.Generator().manual_seed(number))
        each.use(Option("threshold", 0.1))
        total += (gradient - _step(each, buffer, gradient)) / len(old)
        each.use(Option("powersgd", 1) if changes else Option("threshold", 0.1))
    new, buffer = _gone_on_with([each for each, _ in old])

    new.use(Option("none"))
    sent = _step(new, buffer, torch.zeros(D))

    assert total.abs().max() > 0.5
    torch.testing.assert_close(sent, total)
    assert not _step(new, buffer, torch.zeros(D)).any()


def test_a_segment_must_name_an_option_of_the_job(make_config):
    replica = Replica(make_config(exchange=AUTO), 0, 1, device="cpu")

    for option in (None, "threshold 0.2"):
        with pytest.raises(ValueError, match=r"`option` must be one of \['none', 'threshold 0.1', 'powersgd 1'\]"):
            replica.run(Segment(num_steps=1, learning_rate=0.1, option=option))
