"""What one rank sees of several optimizers that train one model and are attached together."""

from typing import Any

import torch
from attach_scenario import DILOCO, TOPK, Script
from torch import nn

from search.config import BoConfig
from trainers.own_loop.attach import attach
from trainers.own_loop.attachable import job_config
from trainers.own_loop.together import joined
from wiretune.loop import attach as attach_controller

#: What is attached, and the optimizer's class and its options.
TRAINED: dict[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "topk": ({"exchange": TOPK}, torch.optim.SGD, {"momentum": 0.9}),
    "dgc": ({"exchange": {"kind": "dgc", "density": 0.05}}, torch.optim.SGD, {}),
    "diloco": ({"sync": DILOCO}, torch.optim.AdamW, {}),
    "demo": ({"exchange": {"kind": "demo"}}, torch.optim.SGD, {}),
    "cser": ({"exchange": {"kind": "cser", "period": 4}}, torch.optim.SGD, {}),
}


class Loop(Script):
    """A script that trains matrices and vectors by two optimizers, or by two groups of one."""

    def __init__(self, rank: int, case: str, *, apart: bool) -> None:
        super().__init__(rank)
        how, kind, options = TRAINED[case]
        matrices = [each for each in self.model.parameters() if each.ndim > 1]
        vectors = [each for each in self.model.parameters() if each.ndim == 1]
        groups = [{"params": matrices, "lr": 0.1}, {"params": vectors, "lr": 0.02}]
        given = [groups] if not apart else [[each] for each in groups]
        self.optimizers = [kind(each, **options) for each in given]  # type: ignore[call-arg]
        self.handle = attach(self.model, self.optimizers if apart else self.optimizers[0], **how)

    def step(self, step: int, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            optimizer.zero_grad()
        for rows in self.inputs[step % len(self.inputs), :1]:
            (self.model(rows) - rows[:, :4]).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()


def together(rank: int, num_workers: int) -> dict[str, Any]:
    """Training by two optimizers and by one of both; steps that are taken back; and steps out of turn."""
    found: dict[str, Any] = {}
    for case in TRAINED:
        one, two = (Loop(rank, case, apart=apart).train(range(12)) for apart in (False, True))
        assert one.handle is not None and two.handle is not None
        begun = Loop(rank, case, apart=True).train(range(6))
        assert begun.handle is not None
        begun.handle.snapshot("slot")
        begun.train(range(6, 9)).handle.restore("slot")
        again = begun.train(range(6, 12))
        found[case] = {
            "bits": [one.bits, two.bits, again.bits],
            "steps": [each.handle._steps.taken for each in (one, two)],
            "bytes": [each.handle.take_bytes() for each in (one, two)],
            "out of turn": _out_of_turn(rank, case),
        }
    return found | {"tuned": _tuned(rank)}


def _out_of_turn(rank: int, case: str) -> str:
    """What is said of a second step of one optimizer; nothing: a round of what has stepped is counted."""
    loop = Loop(rank, case, apart=True).train(range(1))
    assert loop.handle is not None
    loop.model(loop.inputs[1, 0]).sum().backward()
    loop.optimizers[0].step()
    try:
        loop.optimizers[0].step()
    except RuntimeError as error:
        return str(error)
    return f"nothing, {loop.handle._steps.taken} steps"


def _tuned(rank: int) -> dict[str, Any]:
    """A search of the rates of two optimizers."""
    script = Loop.__new__(Loop)
    Script.__init__(script, rank)
    weights = [each for each in script.model.parameters() if each.ndim > 1]
    biases = [each for each in script.model.parameters() if each.ndim == 1]
    script.optimizers = [torch.optim.SGD(weights, lr=0.1), torch.optim.AdamW(biases, lr=0.001)]
    tuner = attach_controller(
        script.model,
        script.optimizers,
        controller=BoConfig(num_stages=1, max_search_fraction=0.5),
        steps=120,
        exchange=TOPK,
    )
    ratios, num_probing = set[float](), 0
    while not tuner.is_over:
        rates = [each.param_groups[0]["lr"] for each in script.optimizers]
        ratios.add(round(rates[1] / rates[0], 9))
        for each in script.optimizers:
            each.zero_grad()
        rows = script.inputs[len(ratios) % 40, 0]
        loss = (script.model(rows) - rows[:, :4]).square().mean()
        loss.backward()
        for each in script.optimizers:
            each.step()
        num_probing += tuner.is_probing
        tuner.report(loss.detach())
    return {"ratios": sorted(ratios), "bits": script.bits, "searched": num_probing}


def described(*optimizers: torch.optim.Optimizer, exchange: dict[str, Any]) -> str:
    """The kind of optimizer that a job with the same ones would have."""
    return job_config(joined(optimizers), exchange, None, seed=0).optimizer.kind


def two_of(kind: type[torch.optim.Optimizer], **options: Any) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """A model, and an optimizer for each of its parameters."""
    model = nn.Linear(4, 4)
    return model, [kind([each], **options) for each in model.parameters()]  # type: ignore[call-arg]
