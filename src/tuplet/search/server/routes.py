"""The routes of the server: searches by image, by vector and from an item; pages, health, metrics and labels."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from tuplet.search.filters import with_labels
from tuplet.search.inputs import choices, is_plain
from tuplet.search.results import Hit
from tuplet.search.server.limits import RefusalError, may_refuse
from tuplet.search.server.service import SearchRequest, Service

#: The most bytes of a vector's JSON, in all and for each number: bodies are kept in memory until they are complete.
VECTOR_BYTES, NUMBER_BYTES = 2**16, 64


def filter_json(labels: list[str], where: str | None, most: int) -> str:
    """Return the filter of a search as JSON text, from labels and a JSON object of metadata; `most` values are allowed.

    >>> filter_json(["bee", "7"], '{"year": 2011}', 256)
    '{"label": ["bee", "7", 7], "year": 2011}'
    """
    try:
        wanted = json.loads(where or "{}")
    except (ValueError, RecursionError):
        wanted = None
    if not isinstance(wanted, dict) or not all(is_plain(value) for each in wanted.values() for value in choices(each)):
        raise RefusalError(
            422, 'where must be a JSON object of text, numbers, booleans or lists of them: {"year": [2011, 2012]}'
        )
    count = len(labels) + sum(max(1, len(choices(each))) for each in wanted.values())  # each key takes time
    if count > most:
        raise RefusalError(422, f"the filter has {count:,} values; at most {most:,} are allowed")
    if labels:
        wanted = with_labels(wanted, [value for label in labels for value in _label_values(label)])
    return json.dumps(wanted, sort_keys=True)


def _label_values(label: str) -> list[Any]:
    """Return the values that a label sent as text may mean: the text, and the number or boolean that it is in JSON."""
    try:
        value = json.loads(label)
    except (ValueError, RecursionError):
        return [label]
    return [label, value] if isinstance(value, int | float) and is_plain(value) else [label]


def add_search_routes(app: Any, service: Service) -> None:
    """Add the searches to a FastAPI application."""
    from fastapi import Query, Request, Response
    from pydantic import BaseModel, Field, ValidationError

    limits = service.limits

    class SearchAnswer(BaseModel):
        hits: list[Hit]

    class VectorBody(BaseModel, extra="forbid"):
        vector: list[float]

    class SearchOptions(BaseModel, extra="forbid"):
        k: int = Field(20, ge=1, le=limits.results, description="The number of results.")
        label: list[str] = Field([], max_length=limits.values, description="Only results with one of these labels.")
        where: str | None = Field(None, description='Only results with these metadata, as JSON: {"year": 2011}.')
        distinct: float | None = Field(
            None, allow_inf_nan=False, description="Leave out a result that scores this or more with a nearer one."
        )

    class ImageSearchOptions(SearchOptions):
        mirror: bool = Field(False, description="Average the image with its mirror image.")

    class ItemSearchOptions(SearchOptions):
        id: str = Field(description="The item to search from.")

    async def answer(
        vector: np.ndarray,
        response: Response,
        options: SearchOptions,
        embed_timing: str = "",
        exclude: str | None = None,
    ) -> SearchAnswer:
        begun = time.perf_counter()
        where = filter_json(options.label, options.where, limits.values)
        search = SearchRequest(vector, options.k + (exclude is not None), where, options.distinct)
        hits = [hit for hit in await service.search(search) if hit.id != exclude]
        response.headers["server-timing"] = f"{embed_timing}search;dur={1000 * (time.perf_counter() - begun):.2f}"
        return SearchAnswer(hits=hits[: options.k])

    def takes(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}

    @asynccontextmanager
    async def sent_image(request: Request) -> AsyncIterator[bytes]:
        """Yield the image in the body of a request; the block inside answers it and has a time limit."""
        async with service.uploads.chunks(request) as chunks:
            service.check_takes_images()
            service.uploads.check_place()
            content = await service.uploads.read(chunks, limits.bytes)
            if request.headers.get("content-type", "").startswith("multipart/"):
                raise RefusalError(
                    415, "the body must be the image itself, not a form; with curl: --data-binary @photo.jpg"
                )
            with service.uploads.place():
                async with service.time_limit(request.receive):
                    yield content

    image_responses = may_refuse(408, 409, 413, 415, 503)
    image_body = takes("application/octet-stream", {"type": "string", "format": "binary"})

    @app.post(
        "/api/search/image",
        summary="Search with an image, which is the body itself",
        responses=image_responses,
        openapi_extra=image_body,
    )
    async def search_image(
        request: Request, response: Response, options: Annotated[ImageSearchOptions, Query()]
    ) -> SearchAnswer:
        async with sent_image(request) as content, service.same_index():
            begun = time.perf_counter()
            vector = await service.image_vector(content, options.mirror)
            embed_timing = f"embed;dur={1000 * (time.perf_counter() - begun):.2f}, "
            return await answer(vector, response, options, embed_timing)

    @app.post(
        "/api/preview",
        summary="A thumbnail of an image, which is the body itself, as a search with it would read it",
        response_class=Response,
        responses={200: {"description": "WebP", "content": {"image/webp": {}}}} | image_responses,
        openapi_extra=image_body,
    )
    async def preview(request: Request) -> Response:
        async with sent_image(request) as content:
            return Response(await service.uploads.thumbnail(content), media_type="image/webp")

    @app.get(
        "/api/start",
        summary="Items to start from, one of each class; their scores mean nothing",
        responses=may_refuse(503),
    )
    async def start(
        request: Request, k: Annotated[int, Query(ge=1, le=limits.results, description="The number of items.")] = 20
    ) -> SearchAnswer:
        async with service.time_limit(request.receive), service.same_index():
            return SearchAnswer(hits=await service.starting_items(k))

    @app.post(
        "/api/search/vector",
        summary="Search with a vector",
        responses=may_refuse(408, 413, 503),
        openapi_extra=takes("application/json", VectorBody.model_json_schema()),
    )
    async def search_vector(
        request: Request, response: Response, options: Annotated[SearchOptions, Query()]
    ) -> SearchAnswer:
        async with service.uploads.chunks(request) as chunks:
            await service.refresh()
            most = min(limits.bytes, VECTOR_BYTES + NUMBER_BYTES * service.index.dim)
            content = await service.uploads.read(chunks, most)
        try:
            sent = VectorBody.model_validate_json(content)
        except ValidationError as error:
            raise RefusalError(422, f'the body must be {{"vector": [numbers]}}: {error.errors()[0]["msg"]}') from None
        async with service.time_limit(request.receive), service.same_index():
            return await answer(service.check_vector(sent.vector), response, options)

    @app.get(
        "/api/search/item",
        summary="Search from an item of the index; it is not among the results",
        responses=may_refuse(404, 503),
    )
    async def search_item(
        request: Request, response: Response, options: Annotated[ItemSearchOptions, Query()]
    ) -> SearchAnswer:
        async with service.time_limit(request.receive), service.same_index():
            return await answer(await service.item_vector(options.id), response, options, exclude=options.id)


def add_info_routes(app: Any, service: Service) -> None:
    """Add health, metrics, labels and the images of items to a FastAPI application."""
    from fastapi import Request, responses

    @app.get("/health", summary="Check that the server answers")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/metrics",
        summary="Counts and times for Prometheus",
        response_class=responses.PlainTextResponse,
        responses=may_refuse(503),
    )
    async def metrics() -> Any:
        text = await asyncio.to_thread(service.metrics_text)
        return responses.PlainTextResponse(text, media_type=service.metrics.content_type)

    @app.get("/api/about", summary="The size, metric and limits of the index", responses=may_refuse(503))
    async def about() -> dict[str, Any]:
        return await asyncio.to_thread(service.about)

    @app.get("/api/labels", summary="The labels of the index, most frequent first", responses=may_refuse(503))
    async def labels(request: Request) -> list[dict[str, Any]]:
        async with service.time_limit(request.receive):
            return [{"label": label, "count": count} for label, count in (await service.labels()).items()]

    webp: dict[int | str, Any] = {
        200: {"description": "WebP", "content": {"image/webp": {}}},
        304: {"description": "unchanged since the one of this If-None-Match"},
    }

    @app.get(
        "/api/thumbnail",
        summary="The thumbnail of an item",
        response_class=responses.Response,
        responses=webp | may_refuse(404, 503),
    )
    async def thumbnail(id: str, request: Request) -> Any:
        async with service.time_limit(request.receive):
            return answer_image(await service.thumbnail(id), request)

    @app.get(
        "/api/original",
        summary="The image of an item's file, at most 1,600 pixels wide or high, if the server shows originals",
        response_class=responses.Response,
        responses=webp | may_refuse(403, 404, 503),
    )
    async def original(id: str, request: Request) -> Any:
        with service.uploads.place():
            async with service.time_limit(request.receive):
                return answer_image(await service.original(id), request)

    def answer_image(content: bytes, request: Request) -> Any:
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return responses.Response(status_code=304, headers={"etag": tag})
        return responses.Response(content, media_type="image/webp", headers={"etag": tag})


def add_pages(app: Any) -> None:
    """Add the web pages to a FastAPI application, with their style sheets and scripts."""
    from fastapi import Response

    def add(path: str, name: str, kind: str) -> None:
        content = Path(__file__).with_name("pages").joinpath(name).read_bytes()

        @app.get(path, include_in_schema=False)
        async def page() -> Any:
            return Response(content, media_type=kind)

    for name, path in (("page", "/"), ("api", "/api")):
        add(path, f"{name}.html", "text/html")
        add(f"/{name}.css", f"{name}.css", "text/css")
        add(f"/{name}.js", f"{name}.js", "text/javascript")
