"""What one rank sees of an exchange, and of local updates, that a script of the user's own is given by `attach`."""

import copy
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from schedulefree import SGDScheduleFree
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from search.config import BoConfig
from trainers.methods.sync.shared.background_thread import BackgroundThread
from trainers.own_loop.attach import Attached, StepValues, attach
from trainers.own_loop.ddp import CompressionConfig, compress_gradients
from trainers.own_loop.handle import Handle
from wiretune.loop import attach as attach_controller
from wiretune.tuner import Tuner

TOPK = {"kind": "topk", "density": 0.05}
DILOCO = {"kind": "diloco", "period": 4, "outer_momentum": 0.5}
#: Exchanges that return a direction to step by.
DIRECTIONS: dict[str, dict[str, Any]] = {
    "demo": {"kind": "demo"},
    "dion": {"kind": "dion"},
    "onebit_adam": {"kind": "onebit_adam", "freeze_steps": 4},
    "zero_one_adam": {"kind": "zero_one_adam", "refreshes": 2},
}
#: Attached in one piece, and in two halves with the state saved between them.
KINDS: dict[str, dict[str, Any]] = {
    "topk": {"exchange": TOPK},
    "corrected": {"exchange": TOPK | {"lr_corrected": True}},
    "liec_sgd": {"exchange": {"kind": "liec_sgd", "period": 4}},
    "diloco": {"sync": DILOCO},
    "sparse diloco": {"sync": DILOCO, "exchange": {"kind": "sparse_loco"}},
    "vrl_sgd": {"sync": {"kind": "vrl_sgd", "period": 4}},
    "cocod_sgd": {"sync": {"kind": "cocod_sgd", "period": 4}},
    **{name: {"exchange": exchange} for name, exchange in DIRECTIONS.items()},
    "local steps": {
        "exchange": {"kind": "zero_one_adam", "freeze_steps": 2, "interval_steps": 2, "max_interval": 4},
    },
}
#: Exchanges that take each backward for a step.
ONCE_A_STEP: dict[str, dict[str, Any]] = DIRECTIONS | {
    "dgc": {"kind": "dgc", "density": 0.05},
    "momentum correction": TOPK | {"momentum_correction": 0.9},
    "dist_ef_sgd": {"kind": "dist_ef_sgd", "momentum": 0.9},
    "cser": {"kind": "cser"},
    "liec_sgd": {"kind": "liec_sgd", "period": 4},
}
#: What is attached to a model with BatchNorm; nothing: by `compress_gradients`.
WITH_BUFFERS: dict[str, dict[str, Any]] = {
    "dense": {"exchange": {"kind": "none"}},
    "topk": {"exchange": TOPK},
    "compress_gradients": {},
    "diloco": {"sync": DILOCO},
}
#: What is attached to a model with BatchNorm and a frozen teacher, and evaluated after so many steps.
EVALUATED: dict[str, tuple[dict[str, Any], int]] = {
    "topk": ({"exchange": TOPK}, 6),
    "diloco, within a round": ({"sync": DILOCO}, 6),
    "diloco, at a meeting": ({"sync": DILOCO}, 8),
    "cser": ({"exchange": {"kind": "cser", "period": 4}}, 6),
}
#: What a controller searches, in which budget.
TUNED: dict[str, dict[str, Any]] = {
    "rate": {**KINDS["sparse diloco"], "steps": 120},
    "level": {"exchange": {"kind": "topk", "density": (0.01, 0.5)}, "bytes": 300_000},
    "period": {
        "exchange": {"kind": "sparse_loco", "density": (0.02, 0.5)},
        "sync": {"kind": "diloco", "period": (2, 8), "outer_learning_rate": (0.5, 1.5)},
        "steps": 240,
        "bytes": 10**9,  # or the density would not be searched
    },
    "rate, averages under way": {**KINDS["cocod_sgd"], "steps": 120},
    "rate, fragments under way": {
        "sync": {"kind": "streaming_diloco", "period": 8, "fragments": 2, "overlap_steps": 2},
        "steps": 120,
    },
}
#: What is refused, by what it is given; the model is bare, or in float16, where that says so.
REFUSED: dict[str, dict[str, Any]] = {
    "bare": {"exchange": TOPK},
    "bare and dense": {},
    "float16": {"sync": DILOCO},
    "unused": {"exchange": TOPK},
    "unused and apart": {"sync": DILOCO, "exchange": {"kind": "sparse_loco"}},
    "a range": {"exchange": {"kind": "topk", "density": (0.01, 0.1)}},
    "a range of periods": {"sync": {"kind": "diloco", "period": (4, 16)}},
    "auto": {"exchange": {"kind": "auto"}},
    "accordion": {"exchange": TOPK | {"levels": {"kind": "accordion", "critical": 0.5}}},
    "stl_sgd": {"sync": {"kind": "stl_sgd"}},
    "scale": {"sync": DILOCO, "scale": lambda: 1024.0},
    "scale and local steps": {"exchange": {"kind": "zero_one_adam", "max_interval": 4}, "scale": lambda: 1024.0},
    "an unknown field": {"sync": {"kind": "diloco", "perod": 4}},
    "momentum": {"exchange": {"kind": "liec_sgd"}},
    "momentum and a direction": {"exchange": {"kind": "dion"}},
    "schedule-free": {"sync": DILOCO},
    "two ddps": {"exchange": TOPK},
    "a head beside ddp": {"exchange": TOPK},
    "a head beside ddp, and apart": {"sync": DILOCO, "exchange": {"kind": "sparse_loco"}},
}


class Script:
    """A user's training script. It accumulates gradients of two batches; each rank has data of its own."""

    def __init__(
        self,
        rank: int,
        *,
        bare: bool = False,
        frozen: bool = False,
        norm: bool = False,
        teacher: bool = False,
        finds_unused: bool = False,
        momentum: float = 0.0,
        device: str = "cpu",
        **how: Any,
    ) -> None:
        torch.manual_seed(rank if bare else 0)  # rank 0's parameters are to be everybody's
        between = nn.BatchNorm1d(64) if norm else nn.ReLU()
        layers = nn.Sequential(nn.Linear(20, 64), between, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
        layers[0].requires_grad_(not frozen)
        if teacher:
            layers.register_parameter("teacher", nn.Parameter(torch.zeros(64, device=device), requires_grad=False))
        self.model: nn.Module = layers
        if not bare:
            self.model = DistributedDataParallel(layers, bucket_cap_mb=0.01, find_unused_parameters=finds_unused)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=momentum)
        self.handle: Attached | None = attach(self.model, self.optimizer, **how) if how else None
        self.inputs = torch.randn(40, 2, 8, 20, generator=torch.Generator().manual_seed(rank)).to(device)
        self.losses: list[float] = []

    def train(self, steps: range) -> "Script":
        for step in steps:
            self.step(step, 0.1 if step < 6 else 0.05)
        return self

    def step(self, step: int, rate: float) -> None:
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        for micro, rows in enumerate(self.inputs[step % len(self.inputs)]):
            is_last = micro == 1 or not isinstance(self.model, DistributedDataParallel)
            with nullcontext() if is_last else self.model.no_sync():
                loss = (self.model(rows) - rows[:, :4]).square().mean()
                loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def accumulate(self, step: int) -> Tensor:
        """Return the gradient `(d,)` after backwards of both batches, each of which exchanges."""
        self.optimizer.zero_grad()
        for rows in self.inputs[step]:
            (self.model(rows) - rows[:, :4]).square().mean().backward()
        return torch.cat([each.grad.flatten() for each in self.model.parameters() if each.grad is not None])

    @property
    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    @property
    def bits(self) -> str:
        return hashlib.sha256(self.vector.numpy().tobytes()).hexdigest()


def attached(rank: int, num_workers: int) -> dict[str, Any]:
    """What becomes of the parameters, by what is attached."""
    return {
        "dense": _dense(rank),
        "kinds": {name: _halves(rank, how) for name, how in KINDS.items()},
        "other states": _other_states(rank),
        "by compress_gradients": {name: _compressed(rank, KINDS[name]["exchange"]) for name in ("topk", *DIRECTIONS)},
        "buffers": {name: _billed_for_buffers(rank, how) for name, how in WITH_BUFFERS.items()},
        "meetings": _meetings(rank),
        "sums of ddp": _sums_of_ddp(rank),
        "by hand": _by_hand(rank, num_workers),
        "accumulated": _accumulated(rank, num_workers),
        "twice": {name: _twice(rank, exchange) for name, exchange in ONCE_A_STEP.items()},
        "timeout": _timeout_s(rank),
        "frozen": Script(rank, bare=True, frozen=True, sync=DILOCO).bits,
        "in another order": _in_another_order(rank),
        "orders of groups": [_with_a_group_at_rate_0(rank, is_first=is_first) for is_first in (True, False)],
        "lost": _lost(rank),
        "mean beside a lost rank": _mean_beside_a_lost_rank(rank),
        "detached": {name: _detached(rank, KINDS[name]) for name in ("topk", "diloco")}
        | {"diloco, finding unused": _detached(rank, KINDS["diloco"] | {"finds_unused": True})},
        "tuned": {name: _tuned_with_late_averages(rank, how) for name, how in TUNED.items()},
        "resumed search": {name: _resumed_search(rank, KINDS[name]) for name in ("topk", "diloco")},
        "refused states": _refused_states(rank),
        "refused": {name: _refusal(rank, name) for name in REFUSED},
    }


def evaluated(rank: int, num_workers: int) -> dict[str, Any]:
    """The state of the model in a loop whose ranks have met or not, by what is attached."""
    return {name: _evaluated(rank, how, num_steps) for name, (how, num_steps) in EVALUATED.items()}


def _evaluated(rank: int, how: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """The bits of the model's state: this rank's, lent, taken back, and left; a frozen layer follows a trained one."""
    script = Script(rank, norm=True, teacher=True, **how)
    assert script.handle is not None and isinstance(script.model, DistributedDataParallel)
    layers = script.model.module
    average = AveragedModel(layers, use_buffers=True)
    for step in range(num_steps):
        script.train(range(step, step + 1))
        layers.teacher.lerp_(layers[0].bias.detach(), 0.5)
        average.update_parameters(layers)
    found = {"own": _state_bits(layers), "own average": _state_bits(average)}
    by_hand = _means(average)
    with script.handle.averaged(average):
        script.handle.average()  # which changes nothing more
        with script.handle.averaged(average):
            found["lent"], found["lent average"] = _state_bits(layers), _state_bits(average)
        found["by hand"] = all(torch.allclose(each, by_hand[name]) for name, each in average.state_dict().items())
    found["average taken back"] = _state_bits(average)
    found["taken back"] = _state_bits(layers)
    script.handle.detach()
    return found | {"left": _state_bits(layers)}


def _means(model: nn.Module) -> dict[str, Tensor]:
    """The means over the ranks of the model's floating-point state; counts are this rank's."""
    state = {name: each.clone() for name, each in model.state_dict().items()}
    for each in state.values():
        if each.is_floating_point():
            torch.distributed.all_reduce(each)
            each /= torch.distributed.get_world_size()
    return state


def _state_bits(model: nn.Module) -> str:
    tensors = (each.contiguous().view(-1).view(torch.uint8) for each in model.state_dict().values())
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest()


def joined(rank: int, num_workers: int) -> dict[str, Any]:
    """What a bare model of odd types begins as, what that sends, and what is said of one that nobody can send."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(4, 4))
    model[0].requires_grad_(False)  # the same base on all ranks
    torch.manual_seed(rank)
    model[1].bias = nn.Parameter(torch.randn(4))
    model.register_buffer("rotations", torch.randn(3, 2, dtype=torch.complex64).t())
    model.register_buffer("wide", torch.randn(2, dtype=torch.complex128))
    model.register_buffer("whole", torch.full((3,), rank, dtype=torch.int16))
    model.register_buffer("narrow", torch.randn(4).to(torch.float8_e4m3fn))
    model.register_buffer("flag", torch.tensor(rank == 0))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    handle = attach(model, optimizer, sync=DILOCO)
    found = {"bits": _state_bits(model), "flag": bool(model.flag), "bytes": handle.take_bytes()["state"]}
    handle.detach()
    model.register_buffer("graph", torch.eye(3).to_sparse())
    try:
        attach(model, optimizer, sync=DILOCO)
    except ValueError as error:
        found["refused"] = str(error)
    return found


def _dense(rank: int) -> dict[str, Any]:
    plain, dense = Script(rank).train(range(12)), Script(rank, exchange={"kind": "none"}).train(range(12))
    assert dense.handle is not None
    found = {"equal": (plain.losses, plain.bits) == (dense.losses, dense.bits), "bytes": dense.handle.take_bytes()}
    first, second = (dense.model(rows) for rows in dense.inputs[0])
    (first * second).mean().backward()
    return found | {"of two forwards": dense.handle.take_bytes()}


def _halves(rank: int, how: dict[str, Any]) -> dict[str, Any]:
    """Training in one piece, in two with the state saved between them, and with steps that are taken back."""
    whole = Script(rank, **how).train(range(12))
    first, second = Script(rank, **how).train(range(6)), Script(rank, **how)
    assert first.handle is not None and second.handle is not None and whole.handle is not None
    second.handle.load_state_dict(first.handle.state_dict())
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.train(range(6, 12))
    first.handle.snapshot("slot")
    first.train(range(6, 11)).handle.restore("slot")
    rewound = first.train(range(6, 12)).bits
    with whole.handle.averaged():
        averaged = whole.bits
    taken = whole.handle.take_bytes()
    return {"whole": whole.bits, "halves": second.bits, "rewound": rewound, "averaged": averaged, "bytes": taken}


def bare(handle: Handle) -> dict[str, Any]:
    """The state of a handle as earlier releases saved it, without the key of the rank."""
    [state] = handle.state_dict().values()
    return {"tensors": state["tensors"]} | json.loads(state["fields"])


def _other_states(rank: int) -> list[str]:
    """What is said of the state of another rank, of one of more ranks, and of one that does not say whose it is."""
    handle = Script(rank, exchange=TOPK).handle
    assert handle is not None
    state, found = bare(handle), []
    for other in ({"rank": 1 - rank}, {"num_ranks": 3}, {"rank": None, "num_ranks": None}):
        try:
            handle.load_state_dict(state | other)
        except ValueError as error:
            found.append(str(error))
    return found


def _compressed(rank: int, exchange: dict[str, Any]) -> str:
    script = Script(rank)
    assert isinstance(script.model, DistributedDataParallel)
    compress_gradients(script.model, CompressionConfig(**exchange))
    return script.train(range(12)).bits


def _meetings(rank: int) -> dict[str, list[str]]:
    """The parameters after each of eight steps of DiLoCo, in DDP and bare."""
    found: dict[str, list[str]] = {}
    for name, how in (("ddp", {}), ("finding unused", {"finds_unused": True}), ("bare", {"bare": True})):
        script = Script(rank, **how, sync=DILOCO)
        found[name] = [script.train(range(step, step + 1)).bits for step in range(8)]
    return found


def _sums_of_ddp(rank: int) -> int:
    """Return how many collectives DDP itself has begun in two periods of DiLoCo."""
    script = Script(rank, finds_unused=True, sync=DILOCO)
    assert isinstance(script.model, DistributedDataParallel)
    group = script.model.process_group  # ranks meet in another
    before = group._get_sequence_number_for_group()
    script.train(range(8))
    return group._get_sequence_number_for_group() - before


def _billed_for_buffers(rank: int, how: dict[str, Any]) -> list[int]:
    """The bytes of three steps, each of two forwards, and of an evaluation of two forwards."""
    script = Script(rank, norm=True, **how)
    assert isinstance(script.model, DistributedDataParallel)
    handle = script.handle or compress_gradients(script.model, CompressionConfig(**TOPK))
    handle.take_bytes()
    billed = []
    for step in range(3):
        script.train(range(step, step + 1))
        billed.append(handle.take_bytes().get("state", 0))
    with torch.no_grad():
        for rows in script.inputs[3]:
            script.model(rows)
    return [*billed, handle.take_bytes().get("state", 0)]


def _by_hand(rank: int, num_workers: int) -> bool:
    """Whether a period of local SGD ends at the mean of what ranks by themselves come to."""
    script = Script(rank, sync={"kind": "local_sgd", "period": 4}).train(range(4))
    alone = []
    for each in range(num_workers):
        single = Script(0, bare=True, sync={"kind": "local_sgd", "period": 1000})
        single.inputs = torch.randn(40, 2, 8, 20, generator=torch.Generator().manual_seed(each))
        alone.append(single.train(range(4)).vector)
    return torch.allclose(script.vector, torch.stack(alone).mean(dim=0), rtol=1e-5, atol=1e-6)


def _accumulated(rank: int, num_workers: int) -> bool:
    """Whether what two exchanges in a step have sent, and what is left, are the sum of the gradients."""
    script = Script(rank, exchange=TOPK).train(range(3))
    assert script.handle is not None
    left = [bare(script.handle)["tensors"]["exchange.residual"]]
    plain = Script(rank)
    plain.model.load_state_dict(script.model.state_dict())
    gradient, expected = script.accumulate(3), plain.accumulate(3)
    left.append(bare(script.handle)["tensors"]["exchange.residual"])
    kept = left[1] - left[0]
    torch.distributed.all_reduce(kept)
    return torch.allclose(gradient + kept / num_workers, expected, rtol=1e-4, atol=1e-6)


def _twice(rank: int, exchange: dict[str, Any]) -> dict[str, str]:
    """What is said of a second backward in a step; where the first was not finite, there is none to go on from."""
    script = Script(rank, exchange=exchange)
    found = {}
    for name, factor in (("after infinity", torch.inf if rank == 1 else 1.0), ("after a gradient", 1.0)):
        script.inputs[3, 0] *= factor
        try:
            script.accumulate(3)
        except RuntimeError as error:
            found[name] = str(error)
        script.inputs[3, 0] = 1.0
    return found


def _timeout_s(rank: int) -> float:
    """Return how long a collective of an exchange may take."""
    handle = Script(rank, exchange=TOPK).handle
    assert handle is not None
    return handle.node_links.between.group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def _in_another_order(rank: int) -> dict[str, Any]:
    """What a bare model begins as: one weight leaves gaps in memory, another is transposed on one rank alone."""
    torch.manual_seed(rank)
    base, other = torch.randn(4, 5), torch.randn(4, 3)
    around = base[:, 3:].clone()
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False))
    model[0].weight = nn.Parameter(base[:, :3])
    model[1].weight = nn.Parameter(other.t().contiguous().t() if rank else other)
    attach(model, torch.optim.SGD(model.parameters(), lr=0.1), sync=DILOCO)
    told = [layer.weight.tolist() for layer in model]
    return {"told": told, "own": [base[:, :3].tolist(), other.tolist()], "around": torch.equal(base[:, 3:], around)}


def _with_a_group_at_rate_0(rank: int, *, is_first: bool) -> str:
    """Train the biases alone, by gradients whose memory follows the rate."""
    script = Script(rank)
    groups: list[dict[str, Any]] = [{"params": [], "lr": 0.0}, {"params": [], "lr": 0.1}]
    for parameter in script.model.parameters():
        groups[parameter.ndim == 1]["params"].append(parameter)
    script.optimizer = torch.optim.SGD(groups if is_first else groups[::-1])
    attach(script.model, script.optimizer, exchange={"kind": "cser", "period": 4})
    for step in range(6):
        script.step(step, script.optimizer.param_groups[0]["lr"])
    return script.bits


def _lost(rank: int) -> list[bool]:
    """Whether parameters are finite after each step; one rank's are not in the second."""
    script = Script(rank, sync=DILOCO)
    script.inputs[1] *= torch.nan if rank == 1 else 1.0
    return [bool(script.train(range(step, step + 1)).vector.isfinite().all()) for step in range(5)]


def _mean_beside_a_lost_rank(rank: int) -> list[str]:
    """The parameters of a rank within a round in which one rank is lost, and their mean."""
    script = Script(rank, bare=True, sync=DILOCO | {"max_z": 3.0})
    assert script.handle is not None
    script.inputs[1] *= torch.nan if rank == 1 else 1.0
    own = script.train(range(2)).bits
    with script.handle.averaged():
        return [own, script.bits]


def _detached(rank: int, how: dict[str, Any]) -> dict[str, Any]:
    """A script that lets go of its exchange, beside a plain one that begins there."""
    script, plain = Script(rank, **how).train(range(6)), Script(rank)
    assert script.handle is not None
    script.handle.detach()
    agreed = script.bits
    script.handle.take_bytes()
    plain.model.load_state_dict(script.model.state_dict())
    same = script.train(range(6, 12)).bits == plain.train(range(6, 12)).bits
    return {"agreed": agreed, "goes on plainly": same, "bytes": script.handle.take_bytes()}


def _tuned_with_late_averages(rank: int, how: dict[str, Any]) -> dict[str, Any]:
    """A search while one rank begins late with what it averages in the background."""
    launch = BackgroundThread.launch

    def launch_late(thread: BackgroundThread[Any], work: Callable[[], Any]) -> None:
        launch(thread, lambda: (time.sleep(0.01 * rank), work())[1])

    with patch.object(BackgroundThread, "launch", launch_late):
        return _tuned(rank, how)


def _tuned(rank: int, how: dict[str, Any]) -> dict[str, Any]:
    """A search while the script counts its bytes, and whether what stays is training at what was committed."""
    script = Script(rank, momentum=0.9)
    config = BoConfig(num_stages=1, max_search_fraction=0.5)  # few steps, and up to three axes more
    if "steps" not in how:  # where a long commit would diverge at a higher rate, and be taken back
        config = config.model_copy(update={"min_learning_rate": 1e-3, "max_learning_rate": 0.2})
    tuner = attach_controller(script.model, script.optimizer, controller=config, **how)
    rates, chosen, probing, taken = list[float](), list[StepValues](), list[bool](), 0
    while not tuner.is_over:
        rates.append(script.optimizer.param_groups[0]["lr"])
        chosen.append(tuner.handle.chosen)
        probing.append(tuner.is_probing)
        script.step(len(chosen) - 1, rates[-1])
        taken += sum(tuner.handle.take_bytes().values())
        tuner.report(script.losses[-1])
    # rank 0 alone has the decisions; the commit begins behind its probes
    searched = torch.tensor([tuner.decisions[0].search_steps if tuner.decisions else 0])
    torch.distributed.broadcast(searched, src=0)
    plain = Script(rank, momentum=0.9, **_fixed(how, chosen[-1]))
    for step in range(int(searched), len(rates)):
        plain.step(step, rates[step])
    probed = [{*values} for values in zip(*chosen[: int(searched)], strict=True)]
    return {
        "rates": rates,
        "chosen": chosen,
        "searched": int(searched),
        "probing": probing,
        "kept": tuner.schedule().num_steps,
        "num_probed": [len(values) for values in probed],
        "stays": set(chosen[int(searched) :]) == {chosen[-1]} and plain.bits == script.bits,
        "bytes": taken,
    }


def _resumed_search(rank: int, how: dict[str, Any]) -> list[dict[str, Any]]:
    """The end of a search that goes on, and that of one that resumes, in a commit, where the first one stood."""
    ends, kept, begun = [], dict[str, Any](), 0
    for _ in range(2):
        script = Script(rank, momentum=0.9)
        tuner = attach_controller(script.model, script.optimizer, controller={"kind": "bo"}, steps=200, **how)
        if kept:
            script.model.load_state_dict(kept["model"])
            script.optimizer.load_state_dict(kept["optimizer"])
            tuner.load_state_dict(kept["tuner"])
        for step in range(begun, 200):
            if not kept and step > 120 and not tuner.is_probing:
                parts = {"model": script.model, "optimizer": script.optimizer, "tuner": tuner}
                kept = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
                begun = step
            script.step(step, script.optimizer.param_groups[0]["lr"])
            tuner.report(script.losses[-1])
        schedule = tuner.schedule().to_json()
        ends.append({"bits": script.bits, "schedule": schedule, "is_over": tuner.is_over, "begun": begun})
    return ends


def _refused_states(rank: int) -> dict[str, Any]:
    """What a tuner says of states that do not fit one rank or each other, and how a search ends from those that do."""

    def begun() -> tuple[Script, Tuner]:
        script = Script(rank, momentum=0.9)
        return script, attach_controller(script.model, script.optimizer, controller={"kind": "fixed"}, steps=12)

    def train(script: Script, tuner: Tuner, steps: range) -> None:
        for step in steps:
            script.step(step, script.optimizer.param_groups[0]["lr"])
            tuner.report(script.losses[-1])

    script, tuner = begun()
    train(script, tuner, range(6))
    parts = {"model": script.model, "optimizer": script.optimizer, "tuner": tuner}
    kept = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
    train(script, tuner, range(6, 7))
    later = copy.deepcopy(tuner.state_dict())
    train(script, tuner, range(7, 12))
    states = {
        "of two steps": kept["tuner"] if rank else later,
        "of another format": kept["tuner"] | ({"format": "another"} if rank else {}),
        "of an end": kept["tuner"] | {"is_over": rank == 1},
    }
    (resumed, again), said = begun(), dict[str, str]()
    for name, state in states.items():
        try:
            again.load_state_dict(state)
        except ValueError as error:
            said[name] = str(error)
    resumed.model.load_state_dict(kept["model"])
    resumed.optimizer.load_state_dict(kept["optimizer"])
    again.load_state_dict(kept["tuner"])
    train(resumed, again, range(6, 12))
    return {"said": said, "whole": script.bits, "resumed": resumed.bits, "are over": [tuner.is_over, again.is_over]}


def _fixed(how: dict[str, Any], chosen: StepValues) -> dict[str, Any]:
    """Return what `how` attaches, with the value in place of each range."""
    values = chosen._asdict() | {"density": chosen.level}
    return {
        part: {name: values[name] if isinstance(given, tuple) else given for name, given in how[part].items()}
        for part in ("exchange", "sync")
        if part in how
    }


def _refusal(rank: int, case: str) -> str:
    script = Script(rank)
    model = nn.Linear(4, 4) if case.startswith("bare") else script.model
    if case.startswith("unused"):
        model = DistributedDataParallel(nn.Linear(4, 4), find_unused_parameters=True)
    if case == "two ddps":
        model = nn.Sequential(script.model, DistributedDataParallel(nn.Linear(4, 4)))
    if case.startswith("a head"):
        model = nn.Sequential(script.model, nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if "momentum" in case else 0.0)
    if case == "schedule-free":
        optimizer = SGDScheduleFree(model.parameters(), lr=0.1)
    try:
        attach(model.half() if case == "float16" else model, optimizer, **REFUSED[case])
    except ValueError as error:
        return str(error)
    return "nothing"
