"""The model card: a README.md beside a model that says what it is, how good it is and how to use it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuplet.atomic import write_atomic
from tuplet.models.embedder import Embedder

CARD = "README.md"
_ROWS = {"recall_at_1": "Recall@1", "map_at_r": "MAP@R", "r_precision": "R-precision", "nmi": "NMI"}


def write_card(
    folder: str | os.PathLike[str],
    embedder: Embedder,
    run: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> None:
    """Write the card of an embedder into its folder, in the format of the Hugging Face hub.

    Args:
        folder: the folder of the model.
        embedder: the embedder.
        run: the content of run.json, if it was trained here: data and settings.
        metrics: the content of evaluation.json.

    >>> import tempfile
    >>> from tuplet import models
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_card(folder, models.create("mlp", features=4, dim=2))
    >>> (folder / CARD).read_text().splitlines()[:2]
    ['---', 'library_name: tuplet']
    """
    text = "\n\n".join(_parts(embedder, run or {}, metrics or {})) + "\n"
    write_atomic(Path(folder, CARD), lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace"))


def _parts(embedder: Embedder, run: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[str]:
    config, prepared = embedder.config, embedder.preprocessing
    tags = ["metric-learning", "embeddings", *(["image-retrieval"] if prepared else [])]
    pipeline = ["pipeline_tag: image-feature-extraction"] if prepared else []
    header = ["---", "library_name: tuplet", *pipeline, "tags:", *(f"- {tag}" for tag in tags), "---"]
    takes = "images" if prepared else "feature vectors"
    what = f"A {config.architecture} that maps {takes} to vectors of {embedder.width} numbers"
    unit = " of length 1" if config.normalize else ""
    use = 'import tuplet\n\nembedder = tuplet.load("FOLDER")\nvectors = embedder.embed(["a.jpg", "b.jpg"])'
    parts = [
        "\n".join(header),
        f"# {config.architecture}, {embedder.width} dimensions",
        f"{what}{unit}. Things of one class are close together.",
        f"```python\n{use}\n```",
        "## Intended use\n\nFinding similar items, grouping them and telling whether two are the same, for data like "
        "those of the training. Before other uses, measure it on your own data: `tuplet evaluate`. It is not made to "
        "decide about people.",
    ]
    if prepared is not None:
        parts.append(
            f"## Input\n\nRGB images, resized to {prepared.resize} ({prepared.resize_mode}), "
            f"the central {prepared.size} × {prepared.size} pixels in 0 … 255. Mean and standard deviation are inside."
        )
    if run:
        settings = run.get("settings", {})
        chosen = {name: settings.get(name) for name in ("loss", "steps", "batch_size", "weights", "seed")}
        rows = {"data": Path(str(run["data"])).name, "recipe": run.get("recipe"), **chosen}
        listed = [f"| {name} | {value} |" for name, value in rows.items() if value is not None]
        parts.append("\n".join(["## Training", "", "| | |", "| --- | --- |", *listed]))
    if metrics:
        listed = [f"| {title} | {100 * metrics[name]:.2f} % |" for name, title in _ROWS.items() if name in metrics]
        where = f"Measured on the {metrics['split']} split{_kind_of_classes(metrics)}."
        parts.append("\n".join(["## Metrics", "", where, "", "| metric | value |", "| --- | ---: |", *listed]))
    parts.append(
        "## Licence\n\nThe code of Tuplet is Apache-2.0. The weights also depend on the licences of the training "
        "images and of the initial weights: name yours here, and as `license:` at the top, before you publish it."
    )
    parts.append(f"Fingerprint: `{embedder.fingerprint()}`")
    return parts


def _kind_of_classes(metrics: Mapping[str, Any]) -> str:
    """Say whether the test classes are those of the training; "" if the run has not noted it."""
    classes, trained = metrics.get("classes"), metrics.get("trained_classes")
    if classes is None or trained is None:
        return ""
    kinds = {0: "classes that the training has not seen", classes: "new examples of the training classes"}
    return ": " + kinds.get(trained, f"{classes:,} classes, {trained:,} of them trained on")
