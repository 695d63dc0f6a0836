"""The result of a run: the best embedder on the test split, and what it gained over the start."""

import copy
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet.data import Dataset
from tuplet.embedding import embed_store
from tuplet.errors import opt, warn
from tuplet.evaluation import average_views, evaluate
from tuplet.evaluation.retrieval import per_query
from tuplet.models import Embedder
from tuplet.training.checkpoint import Progress
from tuplet.training.data import Part
from tuplet.training.evaluate import all_metrics, embed_part, queries_and_gallery, recalls
from tuplet.training.folder import EVALUATION, VECTORS, RunFolder
from tuplet.training.loop import Loop
from tuplet.training.plan import Plan
from tuplet.training.settings import Settings
from tuplet.training.split import query_mask

_logger = logging.getLogger("tuplet")
#: Resamples of the queries, and the confidence of the interval that they give.
RESAMPLES, CONFIDENCE = 2_000, 0.95


def write_result(loop: Loop) -> None:
    """Measure the best embedder on the test split, compare it with the start, and write metrics and embeddings."""
    settings, progress, test = loop.settings, loop.state.progress, loop.examples.test
    if test is None:
        return
    # k-means with thousands of classes takes many minutes on a CPU, and there may be no terminal for a bar.
    tested = f"embedder of step {progress.best_step:,}" if progress.best_step else "untrained model"
    _logger.info("testing the %s on %s examples", tested, f"{len(test.store):,}")
    accuracy = _classifier_accuracy(loop, test)
    before = embed_part(loop.plan.start.embedder, test, loop.world).float()
    best = load_best(loop.plan, progress, loop.folder)
    mirrors = (False, True) if settings.flip_test else (False,)
    views = [embed_part(best, test, loop.world, mirror).float() for mirror in mirrors]
    if not loop.world.is_main:
        return
    metrics = all_metrics(views[0], test.data, loop.examples.ks, settings.seed)
    if settings.flip_test:
        metrics["flip_test"] = recalls(average_views(views), test.data, loop.examples.ks, metric="cosine")
    if accuracy is not None:
        metrics["classifier_accuracy"] = accuracy
    metrics |= {"split": settings.test_on, "embedder": "best", "step": progress.best_step}
    metrics["chosen_on"] = "validation" if settings.validation else "test"
    if progress.best_average is not None:
        metrics["average_with_start"] = 1 - progress.best_average
    metrics["start"], metrics["gain"] = _compare(loop, test.data, before, views[0])
    tensors = {"embeddings": views[0].cpu(), "labels": test.data.labels, "indices": test.indices}
    if (is_query := query_mask(test.data)) is not None:
        tensors["is_query"] = is_query
    loop.folder.write_tensors(VECTORS, tensors)
    ended = {"best_step": progress.best_step, "recall_at_1": metrics["recall_at_1"]}
    loop.events.write("end", step=progress.step, **ended, seconds=progress.seconds)
    loop.events.sync()
    # Written last, since this file marks the run as finished.
    loop.folder.write_json(EVALUATION, metrics)
    report_gain(metrics, settings)


def load_best(plan: Plan, progress: Progress, folder: RunFolder) -> Embedder:
    """Return the best embedder with the weights that were saved: the trained one, or the start if none was better."""
    best = plan.start.embedder if progress.best_step == 0 else plan.embedder
    folder.load_embedder("best", best, plan.world)
    return best


def _classifier_accuracy(loop: Loop, test: Part) -> float | None:
    """Return the accuracy of the loss's own classifier on held-out images of its classes; None without either.

    Only the classifier of the last step is kept, so the embedder of the last step goes with it.
    """
    classify, embedder, settings = loop.state.objective.classify, loop.state.embedder, loop.settings
    knows_classes = settings.split == "images" and settings.same is None and settings.steps > 0
    if classify is None or not knows_classes or not loop.world.is_main:
        return None
    if embedder.config.normalize == "eval":  # it was trained on vectors of free length
        embedder = copy.copy(embedder)
        embedder.config = replace(embedder.config, normalize=False)
    held_out = [i for i, split in enumerate(test.data.splits or ()) if split == "query"]
    found = torch.cat([classify(rows) for rows in embed_store(embedder, test.store, held_out).split(4096)]).tolist()
    names, trained = test.data.class_names, loop.examples.train.data.class_names
    truth = test.data.labels[held_out].tolist()
    return sum(trained[guess] == names[label] for guess, label in zip(found, truth, strict=True)) / len(truth)


def _compare(loop: Loop, data: Dataset, before: Tensor, after: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics of the start, and what was gained over it in Recall@1 of the same queries."""
    seed = loop.settings.seed
    queries, labels, gallery = queries_and_gallery(before, data)
    found = evaluate(queries, labels, ks=loop.examples.ks, runs=0, seed=seed, **gallery)
    start = {name: value for name, value in found.items() if type(value) is float or name == "dim"}
    return {"model": loop.plan.start.about, **start}, gain(_answered(before, data), _answered(after, data), seed)


def _answered(vectors: Tensor, data: Dataset) -> Tensor:
    """Return 1 for each query whose nearest example is of its class, and 0 for the others."""
    queries, labels, gallery = queries_and_gallery(vectors, data)
    return per_query(queries, labels, metrics=["recall_at_1"], **gallery)[0]["recall_at_1"]


def gain(before: Tensor, after: Tensor, seed: int) -> dict[str, Any]:
    """Return the difference of Recall@1 of the same queries, with a paired bootstrap interval over the queries.

    Args:
        before: 1 for each query that the start answers, 0 for the others.
        after: the same of the trained embedder.
        seed: seed of the resamples.

    >>> gain(torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.ones(4), seed=0)
    {'recall_at_1': 0.5, 'interval': [0.0, 1.0], 'confidence': 0.95}
    """
    difference = (after - before).double().cpu()
    # A resample draws each query as one that was lost, stayed or was won: only their numbers matter.
    kinds = [float((difference == value).double().mean()) for value in (-1.0, 0.0, 1.0)]
    lost, _, won = np.random.default_rng(seed).multinomial(len(difference), kinds, RESAMPLES).T
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile((won - lost) / len(difference), [tail, 1 - tail]).tolist()
    return {"recall_at_1": float(difference.mean()), "interval": [low, high], "confidence": CONFIDENCE}


def report_gain(metrics: dict[str, Any], settings: Settings) -> None:
    """Warn if training made the model worse on the test split, and log if that cannot be told."""
    before, after, found = metrics["start"]["recall_at_1"], metrics["recall_at_1"], metrics["gain"]
    low, high = found["interval"]
    change = f"Recall@1 {100 * before:.2f} → {100 * after:.2f} %"
    interval = f"{100 * found['recall_at_1']:+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
    if metrics["step"] == 0 and settings.steps:
        _logger.info("no checkpoint was better on the validation split, so the model before training was kept")
    elif high < 0:
        warn(f"training made the model worse: {change} ({interval}); {what_to_try(settings)}")
    elif low <= 0 and settings.steps:
        _logger.info("these test queries do not tell whether training helped: %s (%s)", change, interval)


def what_to_try(settings: Settings) -> str:
    """Return the options to try when training made a model worse.

    >>> from tuplet.errors import spell
    >>> spell(what_to_try(Settings(lr=1e-3, steps=100)))
    'try lr=0.0003, steps=50, freeze_to, another loss, or keep_start=True'
    """
    options = [opt("lr", float(f"{0.3 * settings.lr:.1g}")), opt("steps", max(1, settings.steps // 2))]
    if settings.freeze_to is None and settings.weights is not None:
        options.append(opt("freeze_to"))
    keep = "" if settings.keep_start else f", or {opt('keep_start', True)}"
    return f"try {', '.join(options)}, another {opt('loss')}{keep}"
