"""Who competes: rivals and controls by name, ours as what each overrides in the product's configuration."""

from typing import Any

from pydantic import ValidationError
from races import ours, rivals

Arm = str | dict[str, Any]

#: DGC's momentum is the exchange's, so the optimizer has none.
_NO_MOMENTUM = {"optimizer": {"momentum": 0.0}}
#: Rounds of 20 steps by the task's own optimizer; an outer rate of 1 without momentum takes the plain average.
_DILOCO = {"sync": {"kind": "diloco", "period": 20, "outer_learning_rate": 1.0, "outer_momentum": 0.0}}
LOCAL: dict[str, dict[str, Any]] = {
    "diloco 20": {"exchange": {"kind": "none"}, **_DILOCO},
    "diloco 20, int4": {"exchange": {"kind": "blockwise", "bits": 4}, **_DILOCO},
    "diloco 5, int4": {"exchange": {"kind": "blockwise", "bits": 4}, "sync": {"kind": "diloco", "period": 5}},
    "diloco 20, sparse_loco": {"exchange": {"kind": "sparse_loco"}, **_DILOCO},
}
#: Matrices step by orthonormal directions.
ORTHONORMAL: dict[str, dict[str, Any]] = {
    "powersgd 4, muon": {"exchange": {"kind": "powersgd", "rank": 4}, "optimizer": {"kind": "muon"}},
    "dion 1/16": {"exchange": {"kind": "dion", "rank_fraction": 1 / 16}, "optimizer": {"kind": "from_exchange"}},
}
OURS: dict[str, dict[str, Any]] = {
    "none": {"exchange": {"kind": "none"}},
    "powersgd 4": {"exchange": {"kind": "powersgd", "rank": 4}},
    "powersgd 8": {"exchange": {"kind": "powersgd", "rank": 8}},
    "dgc 0.3 %": {"exchange": {"kind": "dgc", "density": 0.003}, **_NO_MOMENTUM},
    "threshold 1 %": {"exchange": {"kind": "threshold", "density": 0.01}},
    "threshold 1 %, gathered": {"exchange": {"kind": "threshold", "density": 0.01, "aggregate": "gather"}},
    "threshold 1 %, sharded": {"exchange": {"kind": "threshold", "density": 0.01, "aggregate": "sharded"}},
    **LOCAL,
    **ORTHONORMAL,
}
ARMS: dict[str, Arm] = {**{name: name for name in rivals.METHODS}, **OURS}
CONTROLS = ("nosync", "small-only")
#: In every race: what quotients are formed with.
NOSYNC, RIVAL, PLAIN = "nosync", "torch-powersgd-4", "plain"
#: Races to a loss have these; the two that differ in aggregation alone are for counting bytes.
RACING = (*rivals.METHODS, "none", "powersgd 4", "powersgd 8", "dgc 0.3 %", "threshold 1 %", *LOCAL, *ORTHONORMAL)
COUNTED = ("threshold 1 %, gathered", "threshold 1 %, sharded", "powersgd 4", "dgc 0.3 %")
PACED = ("none", "powersgd 4", "dgc 0.3 %", "threshold 1 %")


def refusal(name: str, task: str) -> str | None:
    """Return why this version of the product cannot run the arm; None: it can."""
    arm = ARMS[name]
    if isinstance(arm, str):
        return None
    try:
        ours.configuration(arm, task, seed=0)
    except ValidationError as error:
        fault = error.errors()[0]
        return f"{name} cannot train {task}: {'/'.join(map(str, fault['loc']))}: {fault['msg']}"
    return None
