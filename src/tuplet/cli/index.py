"""`tuplet index`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuplet import search
from tuplet.cli.places import picture_embedder_of
from tuplet.cli.trouble import say
from tuplet.search.gathering import LARGE, gather
from tuplet.search.gathering import photographs as listed
from tuplet.search.milvus import is_milvus


def index(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of an embedder.")],
    photographs: Annotated[str, typer.Argument(metavar="PHOTOS", help="A folder, a tar, a table or a dataset.")],
    out: Annotated[str, typer.Option("--out", "-o", help="A folder; or a Milvus address, things.db or http://….")],
    split: Annotated[str | None, typer.Option(help="Only this split of the dataset: test, query …")] = None,
    metric: Annotated[
        Literal["euclidean", "cosine", "dot"] | None, typer.Option(help="What near means. [what suits the model]")
    ] = None,
    approximate: Annotated[
        Literal["auto", "no", "hnsw", "ivf_pq"],
        typer.Option(help="Build an approximate index; auto does from a million vectors on."),
    ] = "auto",
    recall: Annotated[
        float, typer.Option(min=0, max=1, help="The recall@10 that the approximate index must reach.")
    ] = 0.95,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … [a GPU where there is one]")] = None,
) -> None:
    """Embed photographs and store their vectors, labels and small pictures in an index.

    Every batch is kept for good at once: stopped or killed, the same command goes on where it was, and photographs that
    are there already, by their names below PHOTOS, are passed over. Those that cannot be read are listed and left out.

    Examples:
      tuplet index runs/birds photos/ -o birds.index
      tuplet index runs/birds cub200.csv --split test -o birds.index
      tuplet index runs/birds photos/ -o http://milvus:19530#birds
    """
    if is_milvus(out) and approximate in ("hnsw", "ivf_pq"):
        raise typer.BadParameter("--approximate is for an index in a folder; Milvus chooses the kind of its own")
    embedder = picture_embedder_of(model, device)
    found = listed(photographs, split)  # first, so that a name that is mistyped leaves no empty index behind
    try:
        things = search.open(out, embedder)
    except FileNotFoundError:
        things = search.create(out, metric=metric, embedder=embedder)
    if metric not in (None, things.metric):
        raise ValueError(
            f"{out} has the metric {things.metric}, not {metric}, and keeps it; "
            "leave --metric out, or choose another --out"
        )
    report = gather(things, found)
    for sentence in report.unreadable:
        say(sentence)
    print(f"{out}: {report}; {len(things):,} in all")
    if isinstance(things, search.Index):
        large = approximate == "auto" and len(things) >= LARGE and things.approximate is None
        if large or approximate in ("hnsw", "ivf_pq"):
            things.build_approximate("hnsw" if large else approximate, recall)
