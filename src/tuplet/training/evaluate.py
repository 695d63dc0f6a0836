"""Measure an embedder: `tuplet.evaluate`, and the final test of a run with its gain over the start."""

import copy
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tuplet import data as datasets
from tuplet import evaluation
from tuplet.data import Dataset
from tuplet.data.dataset import ListedPairs
from tuplet.data.store import Store, Unreadable
from tuplet.embedding import embed_store
from tuplet.embedding.pipeline import suggest_skipping
from tuplet.errors import OptionError, opt, warn
from tuplet.evaluation.retrieval import per_query
from tuplet.models import Embedder, load
from tuplet.training.checkpoint import Progress, TrainState
from tuplet.training.data import Examples
from tuplet.training.distributed import World
from tuplet.training.events import Events
from tuplet.training.folder import EVALUATION, VECTORS, RunFolder
from tuplet.training.model import check_kind_of_data
from tuplet.training.papers import recall_ks
from tuplet.training.plan import Plan
from tuplet.training.settings import Settings
from tuplet.training.split import query_mask

_logger = logging.getLogger("tuplet")
#: Resamples of the queries, and the confidence of the interval that they give.
RESAMPLES, CONFIDENCE = 2_000, 0.95


def evaluate(
    embedder: Embedder | str | os.PathLike[str],
    data: str | os.PathLike[str] | Dataset | torch.utils.data.Dataset[Any],
    *,
    on: Literal["test", "train", "all"] = "test",
    metric: str = "euclidean",
    bootstrap: int = 0,
    rerank: bool = False,
    seed: int = 0,
    unreadable: Unreadable = "stop",
) -> dict[str, Any]:
    """Embed examples and compute every metric, as `tuplet evaluate` does.

    Args:
        embedder: from `tuplet.load`, `tuplet.train` or `tuplet.models.create`; or what `tuplet.load` takes.
        data: a `Dataset`, a `torch.utils.data.Dataset` of (image or tensor, label), or anything that
            `tuplet.data.open` opens.
        on: the split to measure on.
        metric: "euclidean", "cosine" or "dot".
        bootstrap: the number of resamples for 95 % intervals; 0 is none.
        rerank: measure Recall@K and MAP@R after re-ranking too (`tuplet.evaluation.rerank`).
        seed: that of k-means, verification and resampling.
        unreadable: stop at an image that cannot be read, or skip it.

    Returns:
        The metrics of `tuplet.evaluation.evaluate`, and those of the data's levels, several labels and pairs.

    Raises:
        ValueError: there is no such split, or the embedder takes other data.

    >>> from tuplet import models
    >>> vectors = torch.utils.data.TensorDataset(torch.eye(8), torch.arange(8) // 2)
    >>> evaluate(models.create("mlp", features=8, dim=2), vectors, on="all")["queries"]
    8
    """
    if not isinstance(embedder, Embedder | str | os.PathLike):
        given = f"embedder is of type {type(embedder).__name__}"
        raise TypeError(f"{given}; give an embedder or its folder, and vectors to tuplet.evaluation.evaluate")
    embedder = embedder if isinstance(embedder, Embedder) else load(embedder)
    opened = data if isinstance(data, Dataset) else datasets.open(data)
    return measure(
        embedder, choose_examples(opened, on), recall_ks(opened), metric, bootstrap, rerank, seed, unreadable
    )


def choose_examples(data: Dataset, on: Literal["test", "train", "all"]) -> Dataset:
    """Return the examples of a split; neither test examples, as in LFW, nor training examples need the others."""
    if on not in ("test", "train", "all"):
        raise OptionError(f"{opt('on')} is {on!r}", "use test, train or all")
    if on == "all":
        return replace(data, splits=None)
    if data.splits is None:
        return data.split()[on == "test"]
    return data.test_part() if on == "test" else data.part("train")


def measure(
    embedder: Embedder,
    data: Dataset,
    ks: Sequence[int],
    metric: str,
    bootstrap: int,
    rerank: bool,
    seed: int,
    unreadable: Unreadable,
) -> dict[str, Any]:
    """Embed all examples of a dataset and compute every metric."""
    if rerank and metric == "dot":
        raise OptionError(f"{opt('rerank', True)} needs distances, which {opt('metric', 'dot')} has not", "use cosine")
    check_kind_of_data(embedder.config.architecture, data, takes_images=embedder.preprocessing is not None)
    crop = None if embedder.preprocessing is None else embedder.preprocessing.crop
    with suggest_skipping():
        store = datasets.load(data, unreadable=unreadable, crop=crop)
    vectors = embed_store(embedder, store).float()
    return all_metrics(vectors, store.data, ks, seed, metric, bootstrap, rerank)


def embed_shared(
    embedder: Embedder, store: Store, world: World, indices: Sequence[int] | None = None, flip: bool = False
) -> Tensor:
    """Embed examples, all or those at `indices`, or their mirror images.

    Every process embeds its share and gets all vectors.
    """
    indices = range(len(store)) if indices is None else indices
    return world.gather_rows(embed_store(embedder, store, world.share(indices), flip))


def recalls(vectors: Tensor, data: Dataset, ks: Sequence[int], metric: str = "euclidean") -> dict[str, float]:
    """Return Recall@K alone, which is measured often during training."""
    queries, labels, rest = queries_and_gallery(vectors, data)
    found = evaluation.recall_at_k(queries, labels, ks=ks, metric=metric, **rest)
    return {f"recall_at_{k}": value for k, value in found.items()}


def map_at_r(vectors: Tensor, data: Dataset) -> float:
    """Return MAP@R, which is steadier than Recall@1 where there are few queries: every positive counts."""
    queries, labels, gallery = queries_and_gallery(vectors, data)
    return evaluation.map_at_r(queries, labels, **gallery)


def all_metrics(
    vectors: Tensor,
    data: Dataset,
    ks: Sequence[int],
    seed: int,
    metric: str = "euclidean",
    bootstrap: int = 0,
    rerank: bool = False,
) -> dict[str, Any]:
    """Return every metric, for the end of a run; those of levels, several labels and pairs where the data have them."""
    queries, labels, rest = queries_and_gallery(vectors, data)
    metrics = evaluation.evaluate(queries, labels, ks=ks, seed=seed, metric=metric, bootstrap=bootstrap, **rest)
    if rerank:
        metrics["reranked"] = evaluation.reranked_metrics(queries, labels, ks, metric=metric, **rest)
    if data.groups is not None:
        metrics["group"] = data.groups.name
    if data.label_sets is not None:
        _, sets, rest = queries_and_gallery(vectors, data, data.label_sets)
        hierarchy = data.levels is not None
        metrics["ndcg_at_10"] = evaluation.ndcg_at_k(queries, sets, 10, hierarchy=hierarchy, metric=metric, **rest)
        above = list(data.levels or ())[1:]
        if above:
            metrics["levels"] = {name: recalls(vectors, data.at_level(name), ks, metric) for name in above}
    if data.pairs is not None:
        metrics |= _pair_metrics(vectors, data.pairs, metric)
    if data.protocol == "lfw" and len(data.classes) < len(data):
        metrics |= _identification_metrics(vectors, data.labels, metric)
    return metrics


def _pair_metrics(vectors: Tensor, pairs: ListedPairs, metric: str) -> dict[str, Any]:
    """Return the accuracy of the pairs and triplets that the data list, where both of their images are measured."""
    found: dict[str, Any] = {"pairs": len(pairs.same)}
    if len(pairs.triplets):
        a, p, n = (vectors[column] for column in pairs.triplets.to(vectors.device).T)
        nearer = evaluation.pair_scores(a, p, metric=metric) > evaluation.pair_scores(a, n, metric=metric)
        found |= {"triplets": len(nearer), "triplet_accuracy": nearer.double().mean().item()}
    has_folds = pairs.folds is not None and len(pairs.folds.unique()) > 1
    if bool(pairs.same.any()) and not bool(pairs.same.all()) and (has_folds or len(pairs.same) >= 10):
        first, second = (vectors[side.to(vectors.device)] for side in (pairs.first, pairs.second))
        scores = evaluation.pair_scores(first, second, metric=metric)
        # Pairs may be listed in the order of their kind, so the folds are dealt out.
        folds = pairs.folds if has_folds else torch.arange(len(scores)) % 10
        verified = evaluation.pair_verification(scores, pairs.same, folds)
        found |= {"pair_accuracy": verified["accuracy"], "pair_accuracy_stderr": verified["stderr"]}
        found["tar_at_far_0.01"] = evaluation.tar_at_far(scores, pairs.same, 0.01)
    return found


def _identification_metrics(vectors: Tensor, people: Tensor, metric: str) -> dict[str, Any]:
    """Return the rates of closed-set and open-set identification, and the numbers of people and probes."""
    found = evaluation.closed_and_open_set(vectors, people, far=0.01, metric=metric)
    rates = {"rank1": found.pop("rank1"), "dir_at_far_0.01": found.pop("dir_at_far")}
    # Without unknown people there is no open set.
    return {**{name: rate for name, rate in rates.items() if rate is not None}, "identification": found}


def queries_and_gallery(
    vectors: Tensor, data: Dataset, labels: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return the queries with their labels, and where the data have them the gallery and the groups of both.

    `labels` are those of the examples, by default what decides on positives (`Dataset.targets`).
    """
    labels = data.targets if labels is None else labels
    groups = None if data.groups is None else data.groups.codes
    is_query = query_mask(data)
    if is_query is None:
        return vectors, labels, {} if groups is None else {"groups": groups}
    rows = is_query.to(vectors.device)
    rest = {"gallery": vectors[~rows], "gallery_labels": labels[~is_query]}
    if groups is not None:
        rest |= {"groups": groups[is_query], "gallery_groups": groups[~is_query]}
    return vectors[rows], labels[is_query], rest


def write_result(plan: Plan, examples: Examples, state: TrainState, folder: RunFolder, events: Events | None) -> None:
    """Measure the best embedder on the test split, compare it with the start, and write metrics and embeddings."""
    settings, world, progress, test = plan.settings, plan.world, state.progress, examples.test
    if test is None:
        return
    # k-means with thousands of classes takes many minutes on a CPU, and there may be no terminal for a bar.
    tested = f"embedder of step {progress.best_step:,}" if progress.best_step else "untrained model"
    _logger.info("testing the %s on %s examples", tested, f"{len(test.store):,}")
    accuracy = _classifier_accuracy(settings, examples, state) if world.is_main else None
    before = embed_shared(plan.start.embedder, test.store, world).float()
    best = load_best(plan, progress, folder)
    after = embed_shared(best, test.store, world).float()
    flipped = embed_shared(best, test.store, world, flip=True).float() if settings.flip_test else None
    if events is None:  # not the main process
        return
    metrics = all_metrics(after, test.data, examples.ks, settings.seed)
    if flipped is not None:
        averaged = evaluation.average_views([after, flipped])
        metrics["flip_test"] = recalls(averaged, test.data, examples.ks, metric="cosine")
    if accuracy is not None:
        metrics["classifier_accuracy"] = accuracy
    metrics |= {"split": settings.test_on, "embedder": "best", "step": progress.best_step}
    metrics["chosen_on"] = "validation" if settings.validation else "test"
    if progress.best_average is not None:
        metrics["average_with_start"] = 1 - progress.best_average
    queries, labels, rest = queries_and_gallery(before, test.data)
    trained = plan.data.targets[plan.split.train].unique()
    metrics["trained_classes"] = int(torch.isin(labels[labels >= 0].unique(), trained).sum()) if settings.steps else 0
    start = evaluation.evaluate(queries, labels, ks=examples.ks, runs=0, seed=settings.seed, **rest)
    start = {name: value for name, value in start.items() if type(value) is float or name == "dim"}
    metrics["start"] = {"model": plan.start.about, **start}
    metrics["gain"] = gain(_answered(before, test.data), _answered(after, test.data), settings.seed)
    tensors = {"embeddings": after.cpu(), "labels": test.data.labels, "indices": test.indices}
    if (is_query := query_mask(test.data)) is not None:
        tensors["is_query"] = is_query
    folder.write_tensors(VECTORS, tensors)
    ended = {"best_step": progress.best_step, "recall_at_1": metrics["recall_at_1"]}
    events.write("end", step=progress.step, **ended, seconds=progress.seconds)
    events.sync()
    # Written last, since this file marks the run as finished.
    folder.write_json(EVALUATION, metrics)
    report_gain(metrics, settings)


def load_best(plan: Plan, progress: Progress, folder: RunFolder) -> Embedder:
    """Return the best embedder with the weights that were saved: the trained one, or the start if none was better."""
    best = plan.start.embedder if progress.best_step == 0 else plan.embedder
    folder.load_embedder("best", best, plan.world)
    return best


def _classifier_accuracy(settings: Settings, examples: Examples, state: TrainState) -> float | None:
    """Return the accuracy of the loss's own classifier on held-out images of its classes; None without either.

    Only the classifier of the last step is kept, so the embedder of the last step goes with it.
    """
    classify, embedder, test = state.objective.classify, state.embedder, examples.test
    knows_classes = settings.split == "images" and settings.same is None and settings.steps > 0
    if classify is None or not knows_classes or test is None:
        return None
    if embedder.config.normalize == "eval":  # it was trained on vectors of free length
        embedder = copy.copy(embedder)
        embedder.config = replace(embedder.config, normalize=False)
    held_out = [i for i, split in enumerate(test.data.splits or ()) if split == "query"]
    found = torch.cat([classify(rows) for rows in embed_store(embedder, test.store, held_out).split(4096)]).tolist()
    names, trained = test.data.class_names, examples.train.data.class_names
    truth = test.data.labels[held_out].tolist()
    return sum(trained[guess] == names[label] for guess, label in zip(found, truth, strict=True)) / len(truth)


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
        warn(f"training made the model worse: {change} ({interval}); {_what_to_try(settings)}")
    elif low <= 0 and settings.steps:
        _logger.info("these test queries do not tell whether training helped: %s (%s)", change, interval)


def _what_to_try(settings: Settings) -> str:
    """Return the options to try when training made a model worse.

    >>> from tuplet.errors import spell
    >>> spell(_what_to_try(Settings(lr=1e-3, steps=100)))
    'try lr=0.0003, steps=50, freeze_to, another loss, or keep_start=True'
    """
    options = [opt("lr", float(f"{0.3 * settings.lr:.1g}")), opt("steps", max(1, settings.steps // 2))]
    if settings.freeze_to is None and settings.weights is not None:
        options.append(opt("freeze_to"))
    keep = "" if settings.keep_start else f", or {opt('keep_start', True)}"
    return f"try {', '.join(options)}, another {opt('loss')}{keep}"
