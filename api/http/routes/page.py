"""The page: static files and plotly.js."""

import hashlib
import os
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from api.assets import DASHBOARD, modules, plotly_gzipped, plotly_source
from api.http.services import services_of

#: For an address that changes with its content.
_FOR_EVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


class _Files(StaticFiles):
    """The page's files. A browser caches those below `static_path()`, and revalidates any other."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file. An address with an outdated hash is not found."""
        first, _, rest = path.partition(os.sep)
        is_kept = f"/static/{first}" == static_path()
        response = await super().get_response(rest if is_kept else path, scope)
        if is_kept:
            response.headers["Cache-Control"] = _FOR_EVER
        return response


static_files = _Files(directory=DASHBOARD)


@cache
def plotly_path() -> str:
    """Return the URL path of plotly.js, which changes with its content."""
    return f"/vendor/plotly-{hashlib.sha256(plotly_source()).hexdigest()[:16]}.js"


@cache
def static_path() -> str:
    """Return the URL path of the page's files, which changes with the content of any of them."""
    digest = hashlib.sha256()
    for file in sorted(DASHBOARD.rglob("*.*")):
        digest.update(f"{file.relative_to(DASHBOARD)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return f"/static/{digest.hexdigest()[:16]}"


@cache
def _html(name: str, entry: str, sign_in: str = "") -> str:
    """Return a page that lists all modules of `entry`, so that a browser loads them in parallel.

    `sign_in` is where the page lets people sign in without a key; "" if nowhere.
    """
    links = [f'<link rel="modulepreload" href="{static_path()}/{path}">' for path in modules(entry)[1:]]
    html = (DASHBOARD / name).read_text("utf-8")
    places = {
        "plotly": plotly_path(),
        "static": static_path(),
        "modules": "\n    ".join(links),
        "release": version("wiretune"),
        "sign_in": sign_in,
    }
    for place, content in places.items():
        html = html.replace(f"{{{{{place}}}}}", content)
    return html


@router.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> HTMLResponse:
    """Return the page."""
    sign_in = "/v1/sign-in" if services_of(request).store.settings.oidc_client_id else ""
    return HTMLResponse(_html("index.html", "main.js", sign_in), headers={"Cache-Control": "no-cache"})


@router.api_route("/docs", methods=["GET", "HEAD"])
def reference() -> HTMLResponse:
    """Return the API's reference, drawn from /openapi.json."""
    return HTMLResponse(_html("reference.html", "reference.js"), headers={"Cache-Control": "no-cache"})


@router.get("/vendor/{name}")
def vendor(name: str, request: Request) -> Response:
    """Return plotly.js; a name with another content's hash is not found."""
    if f"/vendor/{name}" != plotly_path():
        return Response(status_code=404)
    headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    content = plotly_source()
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], content = "gzip", plotly_gzipped()
    return Response(content, media_type="text/javascript", headers=headers)
