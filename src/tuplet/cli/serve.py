"""`tuplet serve`."""

from pathlib import Path
from typing import Annotated

import typer

from tuplet import search
from tuplet.cli.places import embedder_of, usable_device
from tuplet.search.server import serve as run


def serve(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="What tuplet index wrote.")],
    host: Annotated[
        str, typer.Option(help="The address to listen at; others than this machine's open it to others.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0 is any free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="TUPLET_TOKEN", help="What every request must bring along.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The run, where the index does not hold its model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda … [a GPU where there is one]")] = None,
) -> None:
    """Serve an index over HTTP, with a page to search it; stops at ctrl-C once requests under way are answered.

    With a token, open the page as http://…/?token=TOKEN once. The interface is described at /api, health is at
    /health, and metrics for Prometheus are at /metrics.

    Examples:
      tuplet serve birds.index
      TUPLET_TOKEN=secret tuplet serve birds.index --host 0.0.0.0 --port 80
    """
    things = search.open(index, None if model is None else embedder_of(model))
    if things.has_model:
        things.embedder.to(usable_device(device))
    run(things, host, port, token)
