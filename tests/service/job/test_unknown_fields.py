"""An unknown field is refused, with the likely intended one."""

from typing import Any

import pytest

from tests.support.refusals import problems_in

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}


@pytest.mark.parametrize(
    ("changes", "pointer", "meant"),
    [
        ({"bugdet": 1}, "/bugdet", "did you mean `budget`?"),
        ({"steps": 100}, "/steps", "did you mean `budget.steps`?"),
        ({"learning_rate": 0.1}, "/learning_rate", "did you mean `optimizer.learning_rate`?"),
        ({"budget": {"steps": 9, "second": 1}}, "/budget/second", "did you mean `seconds`?"),
        ({"exchange": {"kind": "topk", "density": 0.1, "memry": 1}}, "/exchange/memry", "did you mean `memory`?"),
        ({"arms": [{"name": "a", "optimiser": {}}]}, "/arms/0/optimiser", "did you mean `optimizer`?"),
        ({"workload": {"factory": "a:b", "parms": {}}}, "/workload/parms", "did you mean `params`?"),
        ({"budget": {"steps": 9, "hours": 1}}, "/budget/hours", "available: seconds, steps, bytes"),
        ({"x" * 100_000: 1}, f"/{'x' * 100_000}", "available: name, workload"),
    ],
)
def test_an_unknown_field_is_refused_with_the_one_that_was_meant(changes: Any, pointer: str, meant: str) -> None:
    [problem] = problems_in(JOB | changes)

    assert problem.pointer == pointer
    assert meant in problem.message
