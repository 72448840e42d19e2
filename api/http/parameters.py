"""Refuses unknown query parameters: a misspelt filter must not list everything."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import ParamTypes

from trainers.spec.refusals import cut, meant


async def require_known(request: Request) -> None:
    """Raise a 422 that names every unknown query parameter, and the likely intended ones.

    Every route depends on it. Routes of the page are not checked: browsers and the page's own scripts use them.
    """
    route = request.scope["route"]
    if not request.query_params or not route.include_in_schema:
        return
    known = _known(route)
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise RequestValidationError([_refusal(name, request.query_params[name], known) for name in unknown])


def _known(route: Any) -> Mapping[str, Sequence[str]]:
    """Return the query parameters of the route and its dependencies, by name; none has parts."""
    fields = get_flat_params(route.dependant)
    return {field.alias: () for field in fields if getattr(field.field_info, "in_", None) is ParamTypes.query}


def _refusal(name: str, value: str, known: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    hint = meant(name, known) or "; this call has none"
    return {"loc": ("query", name), "msg": f"there is no query parameter `{cut(name)}`{hint}", "input": cut(value)}
