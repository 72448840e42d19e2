"""Refuses query parameters that a route does not have: a filter that is misspelt must not list everything."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import ParamTypes

from trainers.spec.refusals import cut, meant


async def require_known(request: Request) -> None:
    """Raise a 422 that names every query parameter which the route does not have, and what may have been meant.

    Every route depends on it. Those of the page are for browsers, and take what the page's own scripts read.
    """
    route = request.scope["route"]
    if not request.query_params or not route.include_in_schema:
        return
    known = _known(route)
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise RequestValidationError([_refusal(name, request.query_params[name], known) for name in unknown])


def _known(route: Any) -> Mapping[str, Sequence[str]]:
    """Return the names of the route's query parameters, with nothing inside of them."""
    fields = get_flat_params(route.dependant)
    return {field.alias: () for field in fields if getattr(field.field_info, "in_", None) is ParamTypes.query}


def _refusal(name: str, value: str, known: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    hint = meant(name, known) or "; this call has none"
    return {"loc": ("query", name), "msg": f"there is no query parameter `{cut(name)}`{hint}", "input": cut(value)}
