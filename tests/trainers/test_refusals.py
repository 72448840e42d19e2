"""Refused configurations in the library name fields, like refused jobs."""

import re
from typing import Any

import pytest

from trainers.own_loop.ddp import CompressionConfig


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"kind": "dgc", "densty": 0.1}, "`exchange.densty`: there is no field `densty`; did you mean `density`?"),
        ({"kind": "qsgd", "density": 0.1}, "`exchange.density`: `exchange.kind: qsgd` has no `density`; kinds that "),
        ({"kind": "topk", "density": 2}, "`exchange.density`: `density` should be less than or equal to 1, got 2"),
        ({"kind": "top"}, "`exchange.kind`: unknown: `top`; available: none, fp16"),
        ({"density": 0.1}, "`exchange.kind`: `kind` is required"),
    ],
    ids=str,
)
def test_an_exchange_of_a_script_is_refused_by_its_field_in_a_jobs_words(fields: dict[str, Any], line: str):
    with pytest.raises(ValueError, match=f"(?m)^{re.escape(line)}") as refused:
        CompressionConfig(**fields)

    assert "pydantic" not in str(refused.value)
