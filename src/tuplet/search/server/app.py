"""The ASGI application of the server."""

import sys
from typing import Any

import tuplet
from tuplet import extras
from tuplet.search.base import Searchable
from tuplet.search.files import DamagedIndexError
from tuplet.search.server.limits import UNREADABLE, Limits, RefusalError
from tuplet.search.server.middleware import App, Middleware
from tuplet.search.server.routes import add_info_routes, add_pages, add_search_routes
from tuplet.search.server.service import Service

_DESCRIPTION = """Search an index by image, by vector, or from one of its items.

Every refusal is {"detail": "one sentence"}. A busy server answers 503 with Retry-After."""


def create_app(
    index: Searchable,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: tuple[str, ...] | None = None,
    originals: bool = False,
) -> App:
    """Return the ASGI application that serves an index; `tuplet.search.server.serve` runs it.

    Needs `pip install 'tuplet[serve]'`.

    Args:
        index: the index.
        limits: the limits of requests.
        token: a secret that every request must bring.
        hosts: the names by which requests may call the server; the default allows any.
        originals: show the images of the files that were indexed and name their paths; the default shows thumbnails.
    """
    return app_of(Service(index, limits or Limits(), originals), token, hosts)


def app_of(service: Service, token: str | None, hosts: tuple[str, ...] | None) -> App:
    """Return the ASGI application of a service."""
    fastapi = extras.need("fastapi", extra="serve", purpose="serving an index")
    app = fastapi.FastAPI(
        title="Tuplet", version=tuplet.__version__, description=_DESCRIPTION, openapi_url="/api/openapi.json",
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    _add_errors(app, fastapi)
    add_search_routes(app, service)
    add_info_routes(app, service)
    add_pages(app)
    return Middleware(app, service.metrics, {route.path for route in app.routes}, token, hosts)


def _add_errors(app: Any, fastapi: Any) -> None:
    """Answer every error with a status and one sentence."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Any:
        return fastapi.responses.JSONResponse({"detail": sentence}, status, headers)

    @app.exception_handler(RefusalError)
    async def refused(request: Any, error: RefusalError) -> Any:
        return problem(error.status, error.sentence, error.headers)

    @app.exception_handler(DamagedIndexError)
    @app.exception_handler(OSError)
    async def unreadable(request: Any, error: Exception) -> Any:
        print(f"tuplet: {error}", file=sys.stderr)
        return await refused(request, RefusalError(503, UNREADABLE))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Any, error: Any) -> Any:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return problem(422, f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def not_found(request: Any, error: Any) -> Any:
        path, allowed = request.scope["path"][:80], (error.headers or {}).get("Allow")
        wrong = f"{path} takes {allowed}, not {request.method}" if allowed else f"there is no {path} here"
        return problem(error.status_code, f"{wrong}; see /api for all paths", error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Any, error: Exception) -> Any:
        return problem(500, "the server failed; see its log")
