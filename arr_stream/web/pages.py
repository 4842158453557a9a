"""What a person opens: the page with its files, and the interface for programs as one plain page.

FastAPI's own pages of the interface load scripts from outside; this one is made of the same OpenAPI description.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse
from starlette.staticfiles import StaticFiles

_STATIC = Path(__file__).parent / "static"
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxLength": "length ≤"}


def page_routes(app: FastAPI) -> None:
    """Add the routes of everything that a person opens."""

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
    """HTML of an OpenAPI description."""
    info = description["info"]
    schemas = description.get("components", {}).get("schemas", {})
    groups: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            group = operation.get("tags", ["more"])[0]
            groups.setdefault(group, []).append("".join(_operation(method, path, operation, schemas)))
    body = "".join(f"<h2>{escape(group)}</h2>{''.join(operations)}" for group, operations in groups.items())
    title = escape(f"{info['title']} {info['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}: interface</title><link rel="stylesheet" href="static/css/docs.css"></head><body><main>'
        f"<h1>{title}</h1><p>{escape(info.get('description', ''))}</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. Pictures and events come over WebSockets: '
        "<code>WS /api/streams/ID/video</code> and <code>WS /api/events</code>.</p>"
        f"{body}</main></body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    yield f"<article><h3>{escape(method.upper())} {escape(path)}</h3>"
    if text := operation.get("description"):
        yield f"<p>{escape(text)}</p>"
    rows = [_row(row["name"], row["in"], row["schema"], schemas) for row in operation.get("parameters", ())]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(content["schema"], schemas)
        if "properties" in schema:
            required = schema.get("required", ())
            rows += [
                _row(name, "body" if name in required else "body, optional", value, schemas)
                for name, value in schema["properties"].items()
            ]
        else:
            rows.append(_row(kind, "body", schema, schemas))
    if rows:
        yield f"<table><tr><th>name</th><th>where</th><th>what</th><th>meaning</th></tr>{''.join(rows)}</table>"
    good = ", ".join(code for code in operation.get("responses", {}) if code.startswith("2"))
    yield f"<p>Answers with {escape(good)}.</p></article>"


def _row(name: str, where: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    cells = (f"<code>{escape(name)}</code>", where, _type(schema, schemas), escape(schema.get("description", "")))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _type(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    schema = _resolved(schema, schemas)
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
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
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = schemas.get(reference.rpartition("/")[2], {})
    return found
