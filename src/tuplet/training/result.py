"""The result of a run: the best embedder and the start on the test split."""

import logging
from typing import Any

import torch
from torch import Tensor

from tuplet.data import Dataset
from tuplet.evaluation import average_views, evaluate
from tuplet.evaluation.retrieval import per_query
from tuplet.training.evaluate import all_metrics, embed_part, queries_and_gallery, recalls
from tuplet.training.folder import EVALUATION, VECTORS
from tuplet.training.loop import Loop
from tuplet.training.start import gain, report_gain

_logger = logging.getLogger("tuplet")


def write_result(loop: Loop) -> None:
    """Measure the best embedder on the test split, compare it with the start, and write metrics and embeddings."""
    settings, progress, test = loop.settings, loop.state.progress, loop.examples.test
    if test is None:
        return
    if loop.events is not None:
        # k-means with thousands of classes takes many minutes on a CPU, and there may be no terminal for a bar.
        count, step = f"{len(test.store):,}", progress.best_step
        _logger.info(
            "testing the %s on %s examples", f"embedder of step {step:,}" if step else "untrained model", count
        )
    before = embed_part(loop.start.embedder, test, loop.world).float()
    best = loop.start.embedder if progress.best_step == 0 else loop.state.embedder
    loop.folder.load_embedder("best", best, loop.world)
    mirrors = (False, True) if settings.flip_test else (False,)
    views = [embed_part(best, test, loop.world, mirror).float() for mirror in mirrors]
    if loop.events is None:
        return
    metrics = all_metrics(views[0], test.data, loop.examples.ks, settings.seed)
    if settings.flip_test:
        metrics["flip_test"] = recalls(average_views(views), test.data, loop.examples.ks, metric="cosine")
    metrics |= {"split": settings.test_on, "embedder": "best", "step": progress.best_step}
    metrics["chosen_on"] = "validation" if settings.validation else "test"
    if progress.best_average is not None:
        metrics["average_with_start"] = 1 - progress.best_average
    metrics["start"], metrics["gain"] = _compare(loop, test.data, before, views[0])
    tensors = {"embeddings": views[0].cpu(), "labels": test.data.labels, "indices": test.indices}
    if test.data.splits is not None and "query" in test.data.splits:
        tensors["is_query"] = torch.tensor([split == "query" for split in test.data.splits])
    loop.folder.write_tensors(VECTORS, tensors)
    ended = {"best_step": progress.best_step, "recall_at_1": metrics["recall_at_1"]}
    loop.events.write("end", step=progress.step, **ended, seconds=progress.seconds)
    loop.events.sync()
    # Written last, since this file marks the run as finished.
    loop.folder.write_json(EVALUATION, metrics)
    report_gain(metrics, settings)


def _compare(loop: Loop, data: Dataset, before: Tensor, after: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics of the start, and what was gained over it in Recall@1 of the same queries."""
    seed = loop.settings.seed
    queries, labels, gallery = queries_and_gallery(before, data)
    found = evaluate(queries, labels, ks=loop.examples.ks, runs=0, seed=seed, **gallery)
    start = {name: value for name, value in found.items() if type(value) is float or name == "dim"}
    return {"model": loop.start.about, **start}, gain(_answered(before, data), _answered(after, data), seed)


def _answered(vectors: Tensor, data: Dataset) -> Tensor:
    """Return 1 for each query whose nearest example is of its class, and 0 for the others."""
    queries, labels, gallery = queries_and_gallery(vectors, data)
    return per_query(queries, labels, metrics=["recall_at_1"], **gallery)[0]["recall_at_1"]
