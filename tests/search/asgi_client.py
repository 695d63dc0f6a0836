"""Send requests to the server's application without a network."""

import asyncio

import httpx


def client(app, **options):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


def fetch(app, method, path, **options):
    async def once():
        async with client(app) as connection:
            return await connection.request(method, path, **options)

    return asyncio.run(once())
