"""Routes for the server's facts, health and metrics; the page; and the documentation of the interface.

FastAPI's own pages of the interface load scripts from outside; this one is made of the same OpenAPI description.
"""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.staticfiles import StaticFiles

import arr_stream
from arr_stream.draw.views import VIEWS
from arr_stream.sources.live import list_cameras
from arr_stream.texture.layout import CHANNELS
from arr_stream.web.problems import Forbidden
from arr_stream.web.serving import Serving
from arr_stream.web.settings import describe

_STATIC = Path(__file__).parent / "static"
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxLength": "length ≤"}
_CHANNELS = [
    {
        "index": channel.index,
        "name": channel.name,
        "description": channel.meaning,
        "low": channel.low,
        "high": channel.high,
    }
    for channel in CHANNELS
]


def info_routes(serving: Serving) -> APIRouter:
    router = APIRouter(tags=["server"])

    @router.get("/healthz")
    def health() -> JSONResponse:
        """Report whether all streams' threads run; needs no token."""
        runners = serving.streams.runners
        well = all(runner.alive for runner in runners)
        told = {
            "status": "ok" if well else "degraded",
            "version": arr_stream.__version__,
            "streams": len(runners),
            "live": sum(runner.live for runner in runners),
            "uptime_seconds": round(time.monotonic() - serving.started_seconds, 1),
        }
        return JSONResponse(told, 200 if well else 503)

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Return all metrics, for Prometheus."""
        text, content_type = serving.observer.metrics(serving.streams, len(serving.clients))
        return Response(text, media_type=content_type)

    @router.get("/api/info")
    def info() -> dict[str, Any]:
        """Describe this server and what it allows."""
        allowed = serving.allowed
        return {
            "version": arr_stream.__version__,
            "views": list(VIEWS),
            "channels": _CHANNELS,
            "presets": [{"name": name, "description": text} for name, text in serving.presets.items()],
            "sources": {
                "browser": allowed.browser,
                "cameras": allowed.cameras,
                "named": allowed.public_names,
                "patterns": list(allowed.patterns),
                "folders": bool(allowed.folders),
            },
            "model": serving.model,
            "settings": describe(serving.streams.settings),
            "max_streams": serving.streams.most_streams,
        }

    @router.get("/api/cameras")
    def cameras() -> list[dict[str, str]]:
        """List the cameras of the server."""
        if not serving.allowed.cameras:
            raise Forbidden("the server's cameras may not be opened", remedy="start it with --allow-cameras")
        return [{"source": camera.source, "name": camera.name} for camera in list_cameras()]

    return router


def page_routes(app: FastAPI) -> None:
    """Add the routes of the pages that a user opens."""

    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(_STATIC / "index.html", media_type="text/html")

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> FileResponse:
        return FileResponse(_STATIC / "icon.svg", media_type="image/svg+xml")

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    app.mount("/static", StaticFiles(directory=_STATIC, follow_symlink=False), name="static")


def docs_page(description: dict[str, Any]) -> str:
    """Return the HTML of an OpenAPI description."""
    info = description["info"]
    schemas = description.get("components", {}).get("schemas", {})
    groups: dict[str, str] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            group = operation.get("tags", ["more"])[0]
            groups[group] = groups.get(group, f"<h2>{escape(group)}</h2>") + _operation(
                method, path, operation, schemas
            )
    title = escape(f"{info['title']} {info['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: interface</title><link rel="stylesheet" href="static/css/docs.css"></head><body><main>'
        f"<h1>{title}</h1><p>{escape(info.get('description', ''))}</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. Pictures and events come over WebSockets: '
        "<code>WS /api/streams/ID/video</code> and <code>WS /api/events</code>.</p>"
        f"{''.join(groups.values())}</main></body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    rows = [_row(row["name"], row["in"], row["schema"], schemas) for row in operation.get("parameters", ())]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(content["schema"], schemas)
        required = schema.get("required", ())
        for name, value in schema.get("properties", {kind: schema}).items():
            optional = "properties" in schema and name not in required
            rows.append(_row(name, "body, optional" if optional else "body", value, schemas))
    text, head = operation.get("description"), "<tr><th>name</th><th>where</th><th>what</th><th>meaning</th></tr>"
    good = ", ".join(code for code in operation.get("responses", {}) if code.startswith("2"))
    return (
        f"<article><h3>{escape(method.upper())} {escape(path)}</h3>"
        + (f"<p>{escape(text)}</p>" if text else "")
        + (f"<table>{head}{''.join(rows)}</table>" if rows else "")
        + f"<p>Answers with {escape(good)}.</p></article>"
    )


def _row(name: str, where: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    cells = (f"<code>{escape(name)}</code>", where, _type(schema, schemas), escape(schema.get("description", "")))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _type(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    schema = _resolved(schema, schemas)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in values)
    if "anyOf" in schema:
        return " or ".join(_type(each, schemas) for each in schema["anyOf"])
    if "properties" in schema:
        inner = ", ".join(f"{escape(name)}: {_type(value, schemas)}" for name, value in schema["properties"].items())
        return f"{{{inner}}}"
    kind = escape(str(schema.get("type", "any")))
    if "items" in schema:
        return f"{kind} of {_type(schema['items'], schemas)}"
    limits = [f"{sign} {schema[key]}" for key, sign in _LIMITS.items() if key in schema]
    return f"{kind} {escape(', '.join(limits))}".strip()


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schemas.get(schema["$ref"].rpartition("/")[2], {}) if "$ref" in schema else schema
    return found
