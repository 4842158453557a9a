"""The page with its files, and the description of the interface as a page."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.staticfiles import StaticFiles

from arr_stream.web.docs_page import STYLE, docs_page

STATIC = Path(__file__).parent / "static"


def page_routes(app: FastAPI) -> None:
    """Add the routes of everything that a person opens."""

    @app.get("/", include_in_schema=False)
    def index() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> FileResponse:
        return FileResponse(STATIC / "icon.svg", media_type="image/svg+xml")

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    @app.get("/docs.css", include_in_schema=False)
    def docs_style() -> Response:
        return Response(STYLE, media_type="text/css")

    app.mount("/static", StaticFiles(directory=STATIC, follow_symlink=False), name="static")
