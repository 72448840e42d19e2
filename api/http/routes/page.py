"""The page: static files, and plotly.js."""

import hashlib
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from api.assets import DASHBOARD, plotly_gzipped, plotly_source

#: Where index.html names the chart library.
_PLACEHOLDER = "{{plotly}}"

router = APIRouter(include_in_schema=False)
static_files = StaticFiles(directory=DASHBOARD)


@cache
def plotly_path() -> str:
    """Return the URL path of plotly.js, which changes with its content."""
    return f"/vendor/plotly-{hashlib.sha256(plotly_source()).hexdigest()[:16]}.js"


@router.api_route("/", methods=["GET", "HEAD"])
def index() -> HTMLResponse:
    """Return the page."""
    html = (DASHBOARD / "index.html").read_text("utf-8").replace(_PLACEHOLDER, plotly_path())
    return HTMLResponse(html, headers={"Cache-Control": "no-cache"})


@router.api_route("/docs", methods=["GET", "HEAD"])
def reference() -> HTMLResponse:
    """Return the API's reference, drawn from /openapi.json."""
    html = (DASHBOARD / "reference.html").read_text("utf-8")
    return HTMLResponse(html, headers={"Cache-Control": "no-cache"})


@router.get("/vendor/{name}")
def vendor(name: str, request: Request) -> Response:
    """Return plotly.js; a name with another content's hash is not found."""
    if f"/vendor/{name}" != plotly_path():
        return Response(status_code=404)
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    content = plotly_source()
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], content = "gzip", plotly_gzipped()
    return Response(content, media_type="text/javascript", headers=headers)
