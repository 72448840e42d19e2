"""The published methods as pieces of a job, by family; what a family's method is compared with comes first."""

from typing import Any

from trainers.methods import registry
from trainers.spec.method import OPEN

Json = dict[str, Any]

#: Where the method has a momentum of its own, or none.
_PLAIN_SGD: Json = {"optimizer": {"momentum": 0.0}}
#: In every race: dense training, and the two controls, which are no methods.
ALWAYS: dict[str, str | Json] = {
    "dense": {"exchange": {"kind": "none"}},
    "nosync": "nosync",
    "small-only": "small-only",
}


def _exchange(kind: str, **knobs: object) -> Json:
    return {"exchange": {"kind": kind, **knobs}}


def _sync(kind: str, **knobs: object) -> Json:
    return {"exchange": {"kind": "none"}, "sync": {"kind": kind, **knobs}}


#: With a trust that suits the grid of rates.
_LARS: Json = {"exchange": {"kind": "none"}, "optimizer": {"kind": "lars", "trust": 0.1}}
FAMILIES: dict[str, dict[str, Json]] = {
    "fewer bits": {
        "fp16": _exchange("fp16"),
        "bf16": _exchange("bf16"),
        "qsgd": _exchange("qsgd"),
        "terngrad": _exchange("terngrad"),
        "signsgd, EF": _exchange("signsgd"),
        "signsgd, majority": _exchange("signsgd", feedback=False),
        "onebit": _exchange("onebit"),
    },
    "fewer entries": {
        "threshold 1 %": _exchange("threshold", density=0.01),
        "threshold, hold: run": _exchange("threshold", density=0.01, hold="run"),
        "topk 1 %": _exchange("topk", density=0.01),
        "topk 1 %, exact": _exchange("topk", density=0.01, selection="exact"),
        "topk 1 %, EF21": _exchange("topk", density=0.01, memory="ef21"),
        "randomk 1 %": _exchange("randomk", density=0.01),
        "gtopk 1 %": _exchange("gtopk", density=0.01),
        "dgc 1 %": _exchange("dgc", density=0.01) | _PLAIN_SGD,
        "adacomp": _exchange("adacomp"),
    },
    "low rank": {"powersgd 4": _exchange("powersgd", rank=4), "powersgd 1": _exchange("powersgd", rank=1)},
    "levels": {
        "powersgd 1": _exchange("powersgd", rank=1),
        "powersgd 4": _exchange("powersgd", rank=4),
        "powersgd, accordion 1-4": _exchange(
            "powersgd", rank=1, levels={"kind": "accordion", "critical": 4, "interval": 2, "epoch_steps": 10}
        ),
        "topk 1 %, accordion 1-50 %": _exchange(
            "topk", density=0.01, levels={"kind": "accordion", "critical": 0.5, "interval": 2, "epoch_steps": 10}
        ),
        "topk, cat": _exchange("topk", density=0.1, levels={"kind": "cat"}),
        "topk, cat, payload": _exchange("topk", density=0.1, levels={"kind": "cat", "cost": {"kind": "payload"}}),
        "topk, cat, affine": _exchange("topk", density=0.1, levels={"kind": "cat", "cost": {"kind": "affine"}}),
        "topk, cat, packets": _exchange("topk", density=0.1, levels={"kind": "cat", "cost": {"kind": "packet"}}),
        "topk, cat, signs": _exchange("topk", density=0.1, values="sign", levels={"kind": "cat"}),
        "topk, cat, drawn": _exchange("topk", density=0.1, memory="none", levels={"kind": "cat", "variant": "drawn"}),
        "accordion, batches 1-8": _sync("accordion_batch", interval=2, epoch_steps=10),
        "threshold, calibrated": _exchange("threshold", density=0.01, hold="run", levels={"kind": "calibrated"}),
        "topk, warmup": _exchange("topk", density=0.001, levels={"kind": "warmup", "steps": 60}),
    },
    "both ways": {
        "doublesqueeze": _exchange("doublesqueeze") | _PLAIN_SGD,
        "dist_ef_sgd": _exchange("dist_ef_sgd", momentum=0.9) | _PLAIN_SGD,
        "cser": _exchange("cser") | _PLAIN_SGD,
        "liec_sgd, 100": _exchange("liec_sgd", period=100) | _PLAIN_SGD,
        "dense, no momentum": _exchange("none") | _PLAIN_SGD,
    },
    "local": {
        "local_sgd 8": _sync("local_sgd", period=8),
        "local_sgd 8, slow momentum": _sync("local_sgd", period=8, slow_momentum=0.5),
        "local_sgd 8, topk 10 %": _sync("local_sgd", period=8) | _exchange("topk", density=0.1),
        "diloco 8": _sync("diloco", period=8, outer_learning_rate=0.7, outer_momentum=0.5),
        "diloco 8, sparse_loco": _sync("diloco", period=8) | _exchange("sparse_loco"),
        "stl_sgd": _sync("stl_sgd", period=4, first_stage=40),
        "stl_sgd, NC": _sync("stl_sgd", period=4, first_stage=40, growth="linear", gamma=10.0),
        "vrl_sgd 8": _sync("vrl_sgd", period=8),
        "cocod_sgd 8": _sync("cocod_sgd", period=8),
        "overlap_local_sgd 2": _sync("overlap_local_sgd", period=2),
    },
    "less computed": {
        "jointspar 50 %": {"exchange": {"kind": "none"}, "blocks": {"kind": "jointspar", "share": 0.5}},
        "jointspar 50 %, lars": _LARS | {"blocks": {"kind": "jointspar", "share": 0.5}},
        "lars": _LARS,
        "dropit 80 %": {"exchange": {"kind": "none"}, "activations": {"kind": "dropit", "gamma": 0.8}},
    },
}


#: What every arm has that says nothing of a part.
TRIVIAL = {("exchange", "none"), ("sync", "every_step"), ("blocks", "all")}


def _others() -> dict[str, Json]:
    """Return the methods of jobs that no family names, each with the least that it needs."""
    arms = [arm for family in FAMILIES.values() for arm in family.values()]
    named = {(part, chosen.get("kind")) for arm in arms for part, chosen in arm.items()}
    return {
        method.kind: {"exchange": {"kind": "none"}, **method.beside, method.part: {"kind": method.kind, **method.least}}
        for method in registry.METHODS
        if method.part in OPEN and (method.part, method.kind) not in named | TRIVIAL
    }


if others := _others():
    FAMILIES["others"] = others
METHODS: dict[str, Json] = {name: arm for family in FAMILIES.values() for name, arm in family.items()}
