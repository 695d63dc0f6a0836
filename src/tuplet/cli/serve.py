"""`tuplet serve`."""

from typing import Annotated

import typer

from tuplet.cli.arguments import Device, IndexModel
from tuplet.cli.errors import when_stopped


def serve(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index made by tuplet index.")],
    host: Annotated[
        str, typer.Option(help="The address to listen at; the default accepts only this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0 picks a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="TUPLET_TOKEN", help="A secret that every request must send.")
    ] = None,
    originals: Annotated[
        bool | None,
        typer.Option("--originals/--no-originals", help="Serve the full-size files. [only if --host is this machine]"),
    ] = None,
    model: IndexModel = None,
    device: Device = None,
) -> None:
    """Serve an index over HTTP, with a search page. Ctrl-C finishes the running requests and stops.

    With a token, open the page once as http://…/?token=TOKEN. The API is described at /api, the health check is at
    /health, and metrics for Prometheus are at /metrics.

    Examples:
      tuplet serve birds.index
      TUPLET_TOKEN=secret tuplet serve birds.index --host 0.0.0.0 --port 80
    """
    from tuplet import search
    from tuplet.cli.runs import load_embedder
    from tuplet.search.server import serve as run_server
    from tuplet.training.distributed import usable_device

    opened = search.open(index, None if model is None else load_embedder(model))
    if opened.has_model:
        opened.embedder.to(usable_device(device))
    with when_stopped(str):  # a server has nothing to keep
        run_server(opened, host, port, token, originals=originals)
