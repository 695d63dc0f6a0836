"""The three ways to search over HTTP: by photograph, by vector, from an item."""

import time
from typing import Annotated, Any

import numpy as np

from tuplet.search.server.body import Body
from tuplet.search.server.limits import RefusalError, may_refuse
from tuplet.search.server.service import Ask, Service

#: What the JSON of a vector may take: senders are many, and what they send is held until it is whole.
VECTOR_BYTES, NUMBER_BYTES = 2**16, 64


def add_searches(app: Any, service: Service) -> None:
    """Add the routes to a FastAPI application."""
    from fastapi import Query, Request, Response
    from pydantic import BaseModel, Field, ValidationError

    limits = service.limits

    class Found(BaseModel):
        id: str
        score: float
        metadata: dict[str, Any]

    class Answer(BaseModel):
        hits: list[Found]

    class Vector(BaseModel):
        vector: list[float]

    class Options(BaseModel):
        k: int = Field(20, ge=1, le=limits.results, description="How many results.")
        label: list[str] = Field([], description="Only results with one of these labels.")
        where: str | None = Field(None, description='Only results with these metadata, as JSON: {"year": 2011}.')
        distinct: float | None = Field(
            None, allow_inf_nan=False, description="Leave out a result that scores this or more with one before it."
        )

    class PhotographOptions(Options):
        mirror: bool = Field(False, description="Average the photograph with its mirror image.")

    async def answer(
        vector: np.ndarray, response: Response, options: Options, embedding: str = "", leave_out: str | None = None
    ) -> Answer:
        begun = time.perf_counter()
        where = service.where(options.label, options.where)
        ask = Ask(vector, options.k + (leave_out is not None), where, options.distinct)
        hits = [hit for hit in await service.searches(ask) if hit.id != leave_out]
        response.headers["server-timing"] = f"{embedding}search;dur={1000 * (time.perf_counter() - begun):.2f}"
        found = [Found(id=hit.id, score=hit.score, metadata=hit.metadata) for hit in hits]
        return Answer(hits=found[: options.k])

    def takes(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}

    @app.post(
        "/api/search/photograph",
        summary="What is near a photograph, which is the body as it is",
        responses=may_refuse(408, 409, 413, 415, 503),
        openapi_extra=takes("application/octet-stream", {"type": "string", "format": "binary"}),
    )
    async def photograph(
        request: Request, response: Response, options: Annotated[PhotographOptions, Query()]
    ) -> Answer:
        body = Body(request, limits)
        try:
            with service.admitted():
                content = await body.read(limits.bytes)
                if request.headers.get("content-type", "").startswith("multipart/"):
                    raise RefusalError(
                        415, "the body must be the photograph itself, and no form; with curl: --data-binary @photo.jpg"
                    )
                async with service.in_time(), service.one_index():
                    begun = time.perf_counter()
                    vector = await service.photograph(content, options.mirror)
                    embedding = f"embed;dur={1000 * (time.perf_counter() - begun):.2f}, "
                    return await answer(vector, response, options, embedding)
        except RefusalError:
            await body.discard()
            raise

    @app.post(
        "/api/search/vector",
        summary="What is near a vector",
        responses=may_refuse(408, 413, 503),
        openapi_extra=takes("application/json", Vector.model_json_schema()),
    )
    async def vector(request: Request, response: Response, options: Annotated[Options, Query()]) -> Answer:
        body = Body(request, limits)
        try:
            await service.latest()
            most = min(limits.bytes, VECTOR_BYTES + NUMBER_BYTES * service.index.dim)
            sent = Vector.model_validate_json(await body.read(most))
        except RefusalError:
            await body.discard()
            raise
        except ValidationError as error:
            raise RefusalError(422, f'the body must be {{"vector": [numbers]}}: {error.errors()[0]["msg"]}') from None
        async with service.in_time(), service.one_index():
            return await answer(service.vector(sent.vector), response, options)

    @app.get(
        "/api/search/item",
        summary="What is near an item of the index, which is left out",
        responses=may_refuse(404, 503),
    )
    async def item(id: str, response: Response, options: Annotated[Options, Query()]) -> Answer:
        async with service.in_time(), service.one_index():
            return await answer(await service.item(id), response, options, leave_out=id)
