"""No field of a job accepts infinity: JSON cannot express it, so the stored job could not be read again."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from search.schedule_file import Entry
from service.job.spec import JobSpec

#: These travel as words (`search.types.Value`): what a run has measured may be infinite.
AS_WORDS = {(Entry, name) for name in ("level", "density", "threshold")}


def _inside(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of."""
    yield annotation
    for each in get_args(annotation):
        yield from _inside(each)


def _models(model: type[BaseModel], found: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Return the models that a value of `model` may have in it, itself first."""
    if model not in found:
        found[model] = None
        for field in model.model_fields.values():
            for each in _inside(field.annotation):
                if isinstance(each, type) and issubclass(each, BaseModel):
                    _models(each, found)
    return found


FLOATS = [
    (model, name)
    for model in _models(JobSpec, {})
    for name, field in model.model_fields.items()
    if float in _inside(field.annotation) and (model, name) not in AS_WORDS
]


@pytest.mark.parametrize(("model", "name"), FLOATS, ids=[f"{model.__name__}.{name}" for model, name in FLOATS])
@pytest.mark.parametrize("given", [math.inf, [0.5, math.inf]], ids=["number", "pair"])
def test_no_number_of_a_job_is_infinite(model: type[BaseModel], name: str, given: object) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({name: given})

    assert name in {error["loc"][0] for error in refused.value.errors() if error["loc"]}
