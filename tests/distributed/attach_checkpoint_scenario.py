"""What ranks save of a handle with `torch.distributed.checkpoint`, and what as many ranks, or others, go on with."""

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attach_scenario import DILOCO, TOPK, Script, bare
from torch import Tensor
from torch.distributed import checkpoint

from trainers.own_loop.attach import Attached
from trainers.own_loop.ddp import CompressionConfig, compress_gradients
from wiretune.checkpoints import SavedStates, load_memory

#: What is attached, and saved in a folder of this name; None: by `compress_gradients`.
SAVED: dict[str, dict[str, Any] | None] = {
    "topk": {"exchange": TOPK},
    "powersgd": {"exchange": {"kind": "powersgd", "rank": 2}},
    "qsgd": {"exchange": {"kind": "qsgd"}},
    "onebit_adam": {"exchange": {"kind": "onebit_adam", "freeze_steps": 4}},
    "compress_gradients": None,
    "diloco": {"sync": DILOCO},
}
#: Those that another number of ranks inherits, and the tensor of which each rank had its own.
INHERITED = {
    "topk": "exchange.residual",
    "powersgd": "exchange.residual",
    "compress_gradients": "exchange.residual",
}
#: Where two ranks save, beside the folder of others.
PLACE = Path("../saved")


def saved(rank: int, num_workers: int) -> dict[str, Any]:
    """Training in one piece, and in two with a checkpoint between them."""
    found: dict[str, Any] = {}
    for name, how in SAVED.items():
        first, second = _script(rank, how), _script(rank, how)
        first.train(range(6))
        folder = PLACE / name
        checkpoint.save({"model": first.model.state_dict(), "wiretune": first.handle}, checkpoint_id=folder)
        third = _script(rank, how)
        for each, load in ((second, _load), (third, load_memory)):
            load(each.handle, folder)
            each.model.load_state_dict(first.model.state_dict())
            each.optimizer.load_state_dict(first.optimizer.state_dict())
            each.train(range(6, 12))
        tensors = bare(first.handle)["tensors"]
        first.train(range(6, 12))
        found[name] = {"bits": [each.bits for each in (first, second, third)]}
        if name in INHERITED:
            torch.save(tensors[INHERITED[name]], PLACE / f"{name}.{rank}.pt")
            states = SavedStates(folder, "wiretune")
            kept = [state["tensors"][INHERITED[name]] for state in states.values()]
            found[name]["kept apart"] = not kept[0].equal(kept[1]) and kept[rank].equal(tensors[INHERITED[name]])
    return found


def inherited(rank: int, num_workers: int) -> dict[str, Any]:
    """What three ranks go on with from two, by the exchange; what is said; and what is refused."""
    found: dict[str, Any] = {}
    for name, tensor in INHERITED.items():
        mean = sum(torch.load(PLACE / f"{name}.{each}.pt", weights_only=True) for each in range(2)) / 2
        begun: dict[str, Tensor] = {}
        said: dict[str, list[str]] = {}
        for residuals in ("mean", "drop"):
            script = _script(rank, SAVED[name])
            said[residuals] = _said(load_memory, script.handle, PLACE / name, residuals=residuals)
            begun[residuals] = bare(script.handle)["tensors"][tensor].clone()
            script.train(range(6))
        found[name] = {
            "mean": bool(mean.any()) and torch.allclose(begun["mean"], mean),
            "dropped": not begun["drop"].any(),
            "said": said,
            "bits": script.bits,
        }
    for name in ("qsgd", "onebit_adam"):
        load_memory(_script(rank, SAVED[name]).handle, PLACE / name)
    return found | {"dropped": _dropped(rank), "refused": _refused(rank), "steps": _steps(rank)}


def _script(rank: int, how: dict[str, Any] | None) -> Any:
    if how is not None:
        return Script(rank, **how)
    script: Any = Script(rank)
    script.handle = compress_gradients(script.model, CompressionConfig(**TOPK))
    return script


def _load(handle: Attached, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.load({"wiretune": handle}, checkpoint_id=folder)


def _said(call: Callable[..., object], *args: object, **how: object) -> list[str]:
    """What is logged in a call."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("wiretune.attach")
    logger.addHandler(handler)
    try:
        call(*args, **how)
    finally:
        logger.removeHandler(handler)
    return records


def _steps(rank: int) -> int:
    script = Script(rank, exchange=TOPK)
    assert script.handle is not None
    load_memory(script.handle, PLACE / "topk", residuals="drop")
    return script.handle._steps.taken


def _dropped(rank: int) -> dict[str, bool]:
    """What goes on of Adam's moments and counts, and of its residual, where the residual is dropped."""
    handle = _script(rank, SAVED["onebit_adam"]).handle
    load_memory(handle, PLACE / "onebit_adam", residuals="drop")
    heir, old = bare(handle), SavedStates(PLACE / "onebit_adam", "wiretune")["rank-0"]
    first, second = (f"exchange.{name}" for name in ("first", "second"))
    return {
        "moments": all(heir["tensors"][name].equal(old["tensors"][name]) for name in (first, second)),
        "counts": heir["scalars"] == json.loads(old["fields"])["scalars"],
        "residual": bool(heir["tensors"]["exchange.residual"].any()),
    }


def _refused(rank: int) -> dict[str, str]:
    """What is said of what cannot be inherited; a handle that refuses is as it was."""
    topk, diloco, dense = (
        Script(rank, **how) for how in ({"exchange": TOPK}, {"sync": DILOCO}, {"exchange": {"kind": "qsgd"}})
    )
    trained = Script(rank, exchange=TOPK).train(range(1))
    states = {name: dict(state) for name, state in SavedStates(PLACE / "topk", "wiretune").items()}
    before = bare(topk.handle)
    calls = {
        "another number of ranks": lambda: topk.handle.load_state_dict(states),
        "sync": lambda: load_memory(diloco.handle, PLACE / "diloco"),
        "another method": lambda: load_memory(dense.handle, PLACE / "topk"),
        "another key": lambda: load_memory(topk.handle, PLACE / "topk", key="other"),
        "a rank is missing": lambda: topk.handle.inherit({"rank-0": states["rank-0"]}, residuals="mean"),
        "another word": lambda: topk.handle.inherit(states, residuals="sum"),
        "trained": lambda: trained.handle.inherit(states, residuals="mean"),
        "half": lambda: topk.handle.inherit(states | {"rank-1": states["rank-1"] | {"tensors": {}}}, residuals="mean"),
    }
    told = dict.fromkeys(calls, "nothing")
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            told[name] = str(error)
    after = bare(topk.handle)
    same = all(each.equal(after["tensors"][name]) for name, each in before["tensors"].items())
    return told | {"as it was": str(same and before["scalars"] == after["scalars"])}
