"""An invalid exchange in a job is refused by field, with the given value and the allowed ones."""

import math
from typing import Any

import pytest

from service.job.problems import Problem
from tests.support.refusals import problems_in

Fields = dict[str, Any]
TOPK: Fields = {"kind": "topk", "density": 0.1}
ABSOLUTE: Fields = {"kind": "threshold", "search": "absolute"}
DENSITIES = [(0.0, "greater than 0"), (-0.1, "greater than 0"), (1.5, "less than or equal to 1")]
#: An exchange, the field at fault, and what is said to be right.
OUTSIDE: list[tuple[Fields, str, str]] = [
    *(
        ({"kind": kind, "density": density}, "density", right)
        for kind in ("threshold", "topk", "randomk", "dgc", "gtopk")
        for density, right in [*DENSITIES, (math.nan, "less than or equal to 1")]
    ),
    *((TOPK | {"density": [density, 1.0]}, "density/0", right) for density, right in DENSITIES),
    (TOPK | {"density": "many"}, "density", "valid number"),
    (ABSOLUTE | {"threshold": -1.0}, "threshold", "greater than or equal to 0"),
    (ABSOLUTE | {"threshold": math.inf}, "threshold", "finite"),
    (ABSOLUTE | {"threshold": 1.0, "hold": "ever"}, "hold", "stage, run"),
    ({"kind": "threshold", "density": 0.1, "search": "relative"}, "search", "density, absolute"),
    (TOPK | {"memory": "some"}, "memory", "residual, ef21, none"),
    (TOPK | {"momentum_correction": 1.0}, "momentum_correction", "less than 1"),
    (TOPK | {"momentum_correction": -0.1}, "momentum_correction", "greater than or equal to 0"),
    (TOPK | {"values": "int8"}, "values", "float16, float32, sign"),
    (TOPK | {"aggregate": "tree"}, "aggregate", "auto, gather, sharded"),
    (TOPK | {"selection": "guessed"}, "selection", "sampled, exact"),
    (TOPK | {"scope": "row"}, "scope", "layer, bucket, global"),
    (TOPK | {"bucket_mib": 0.0}, "bucket_mib", "greater than 0"),
    (TOPK | {"bucket_mib": 4096.0}, "bucket_mib", "less than or equal to 1024"),
    ({"kind": "randomk", "density": 0.1, "values": "float16"}, "values", "float32"),
    ({"kind": "dgc", "clip": 0.0}, "clip", "greater than 0"),
    ({"kind": "dgc", "clip": math.inf}, "clip", "finite"),
    ({"kind": "adacomp", "conv_bin": 1}, "conv_bin", "greater than or equal to 2"),
    ({"kind": "adacomp", "other_bin": 65_537}, "other_bin", "less than or equal to 65536"),
    ({"kind": "powersgd", "rank": 0}, "rank", "greater than or equal to 1"),
    ({"kind": "powersgd", "rank": [0, 4]}, "rank/0", "greater than or equal to 1"),
    ({"kind": "powersgd", "rank": 2000}, "rank", "less than or equal to 1024"),
    ({"kind": "powersgd", "rank": 1.5}, "rank", "valid integer"),
    ({"kind": "powersgd", "min_saving": 1.0}, "min_saving", "greater than 1"),
    ({"kind": "qsgd", "levels": 0}, "levels", "greater than or equal to 1"),
    ({"kind": "qsgd", "levels": 128}, "levels", "less than or equal to 127"),
    ({"kind": "qsgd", "bucket": 4}, "bucket", "greater than or equal to 8"),
    ({"kind": "qsgd", "norm": "l1"}, "norm", "l2, max"),
    ({"kind": "terngrad", "clip": 0.0}, "clip", "greater than 0"),
    ({"kind": "signsgd", "feedback": "perhaps"}, "feedback", "valid boolean"),
    ({"kind": "sparse_loco", "density": 0.0}, "density", "greater than 0"),
    ({"kind": "sparse_loco", "chunk": 4}, "chunk", "greater than or equal to 8"),
    ({"kind": "sparse_loco", "chunk": 4097}, "chunk", "less than or equal to 4096"),
    ({"kind": "sparse_loco", "decay": 1.1}, "decay", "less than or equal to 1"),
    ({"kind": "demo", "density": 0.0}, "density", "greater than 0"),
    ({"kind": "demo", "decay": 1.0}, "decay", "less than 1"),
    ({"kind": "dion", "rank_fraction": 1.5}, "rank_fraction", "less than or equal to 1"),
    ({"kind": "dion", "rank_fraction": [0.0, 0.5]}, "rank_fraction/0", "greater than 0"),
    ({"kind": "dion", "momentum": 1.0}, "momentum", "less than 1"),
    ({"kind": "zero_one_adam", "refreshes": 0}, "refreshes", "greater than or equal to 1"),
    ({"kind": "zero_one_adam", "max_interval": 0}, "max_interval", "greater than or equal to 1"),
    ({"kind": "zero_one_adam", "interval_steps": 0}, "interval_steps", "greater than or equal to 1"),
    ({"kind": "onebit_adam", "freeze_steps": 0}, "freeze_steps", "greater than or equal to 1"),
    ({"kind": "none", "overlap": "perhaps"}, "overlap", "valid boolean"),
    ({"kind": "none", "density": 0.1}, "density", "`exchange.kind: none` has no `density`"),
    ({"kind": "onebit", "memory": "none"}, "memory", "`exchange.kind: onebit` has no `memory`"),
    ({"kind": "qsgd", "lr_corrected": True}, "lr_corrected", "`exchange.kind: qsgd` has no `lr_corrected`"),
    ({"kind": "zip"}, "kind", "none, fp16, bf16, threshold, topk, randomk, dgc, gtopk, adacomp, powersgd"),
]
#: Knobs that are fine one by one, and the message about the one at fault.
CROSSED: list[tuple[Fields, str, str]] = [
    (TOPK | {"density": [0.1, 0.01]}, "density", "must be [low, high] with low < high, got [0.1, 0.01]"),
    ({"kind": "powersgd", "rank": [4, 4]}, "rank", "must be [low, high] with low < high, got [4, 4]"),
    (TOPK | {"momentum_correction": 0.9, "memory": "ef21"}, "memory", "needs `memory: residual`, got ef21"),
    (TOPK | {"lr_corrected": True, "memory": "none"}, "lr_corrected", "needs `memory: residual`, got none"),
    ({"kind": "dgc", "lr_corrected": True}, "lr_corrected", "does not go with `momentum_correction`, got 0.9"),
    ({"kind": "signsgd", "feedback": False, "lr_corrected": True}, "lr_corrected", "needs `feedback: true`"),
    (TOPK | {"nesterov": True}, "nesterov", "needs `momentum_correction`"),
    ({"kind": "topk"}, "density", "required"),
]


def refused(exchange: Fields) -> dict[str, Problem]:
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}, "exchange": exchange}
    return {problem.pointer: problem for problem in problems_in(body)}


@pytest.mark.parametrize(("exchange", "field", "right"), OUTSIDE, ids=str)
def test_a_knob_outside_its_range_is_named_with_its_value_and_the_range(
    exchange: Fields, field: str, right: str
) -> None:
    problem = refused(exchange)[f"/exchange/{field}"]

    given = exchange[field.removesuffix("/0")]
    given = given[0] if field.endswith("/0") else given
    assert repr(problem.value) == repr(given)  # nan equals nothing
    assert right in problem.message


@pytest.mark.parametrize(("exchange", "field", "message"), CROSSED, ids=str)
def test_knobs_that_do_not_go_together_are_named(exchange: Fields, field: str, message: str) -> None:
    assert message in refused(exchange)[f"/exchange/{field}"].message
