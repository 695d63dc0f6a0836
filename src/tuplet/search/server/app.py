"""The HTTP interface: the application, its errors, and every route but the searches."""

import asyncio
import hashlib
from importlib.resources import files
from typing import Any

import tuplet
from tuplet import extras
from tuplet.search.opening import Searchable
from tuplet.search.server.guard import App, Guard
from tuplet.search.server.limits import Limits, RefusalError, may_refuse
from tuplet.search.server.searches import add_searches
from tuplet.search.server.service import Service

_ABOUT = """Search an index by photograph, by vector, or from one of its items.

Every refusal is {"detail": "one sentence"}. Where the server is busy it answers 503 with Retry-After."""


def create_app(
    index: Searchable, limits: Limits | None = None, token: str | None = None, hosts: tuple[str, ...] | None = None
) -> App:
    """The ASGI application that serves an index; `tuplet.search.server.serve` runs it.

    With a `token` every request needs it; with `hosts` every request must call the server by one of these names.
    Needs `pip install 'tuplet[serve]'`.
    """
    fastapi = extras.need("fastapi", extra="serve", purpose="serving an index")
    service = Service(index, limits or Limits())
    pages = {path: _page(name) for path, name in (("/", "page.html"), ("/api", "api.html"))}
    app = fastapi.FastAPI(
        title="Tuplet", version=tuplet.__version__, description=_ABOUT, openapi_url="/api/openapi.json",
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    _add_errors(app, fastapi)
    add_searches(app, service)
    _add_pages(app, fastapi, service, pages)
    paths = {route.path for route in app.routes}
    return Guard(app, service.metrics, paths, list(pages.values()), token, hosts)


def _page(name: str) -> str:
    return files("tuplet.search.server").joinpath(name).read_text(encoding="utf-8")


def _add_errors(app: Any, fastapi: Any) -> None:
    """Every refusal is a status and one sentence."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Any:
        return fastapi.responses.JSONResponse({"detail": sentence}, status, headers)

    @app.exception_handler(RefusalError)
    async def refused(request: Any, error: RefusalError) -> Any:
        return problem(error.status, error.sentence, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Any, error: Any) -> Any:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return problem(422, f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def other(request: Any, error: Any) -> Any:
        path, allowed = request.url.path, (error.headers or {}).get("Allow")
        wrong = f"{path} takes {allowed}, not {request.method}" if allowed else f"there is no {path} here"
        return problem(error.status_code, f"{wrong}; the interface is described at /api", error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Any, error: Exception) -> Any:
        return problem(500, "the server made a mistake; its log says which")


def _add_pages(app: Any, fastapi: Any, service: Service, pages: dict[str, str]) -> None:
    """The page, the description of the interface, health, metrics, pictures and labels."""
    from fastapi import Request

    responses = fastapi.responses

    @app.get("/", include_in_schema=False)
    async def page() -> Any:
        return responses.HTMLResponse(pages["/"])

    @app.get("/api", include_in_schema=False)
    async def interface() -> Any:
        return responses.HTMLResponse(pages["/api"])

    @app.get("/health", summary="Whether the server answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/metrics",
        summary="Counts and times for Prometheus",
        response_class=responses.PlainTextResponse,
        responses=may_refuse(503),
    )
    async def metrics() -> Any:
        text = service.metrics.text(await asyncio.to_thread(service.gauges))
        return responses.PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @app.get("/api/about", summary="What the index is", responses=may_refuse(503))
    async def about() -> dict[str, Any]:
        return await asyncio.to_thread(service.about)

    @app.get("/api/labels", summary="The labels of the index, the most frequent first", responses=may_refuse(503))
    async def labels() -> list[dict[str, Any]]:
        return [{"label": label, "count": count} for label, count in (await service.labels()).items()]

    webp: dict[int | str, Any] = {
        200: {"description": "WebP", "content": {"image/webp": {}}},
        304: {"description": "the same as the one of this If-None-Match"},
    }

    @app.get(
        "/api/picture",
        summary="The small picture of an item",
        response_class=responses.Response,
        responses=webp | may_refuse(404, 503),
    )
    async def picture(id: str, request: Request) -> Any:
        content = await service.picture(id)
        # Another index may have the same ids, also later at the same address: browsers keep a picture, and ask.
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"cache-control": "private, no-cache", "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return responses.Response(status_code=304, headers=headers)
        return responses.Response(content, media_type="image/webp", headers=headers)
