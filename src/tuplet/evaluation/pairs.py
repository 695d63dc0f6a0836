"""Verification of pairs: the protocol of Labeled Faces in the Wild (LFW), ROC curves and TAR at a FAR."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_labels, positive_integer
from tuplet.evaluation.scores import ScoreTables, similarity
from tuplet.evaluation.vectors import Device, as_vectors


def pair_scores(first: Any, second: Any, *, metric: str = "euclidean", device: Device = None) -> Tensor:
    """Return the similarity of each row of `first` and the same row of `second`.

    Args:
        first: (P, d) vectors, as for `recall_at_k`.
        second: (P, d) vectors.
        metric: "euclidean" for minus the distance, "cosine" or "dot".
        device: where to compute, by default where the vectors are.

    Returns:
        P numbers, higher for more alike.

    >>> pair_scores(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0]])).tolist()
    [-5.0]
    """
    a, b = as_vectors(first, "first", device), as_vectors(second, "second", device)
    if a.count != b.count:
        raise ValueError(f"second must have as many rows as first, {a.count}, got {b.count}; give pairs of rows")
    rows = torch.arange(a.count, device=a.device)
    return similarity(ScoreTables(a, b, metric).exact(rows, rows), metric)


def pair_verification(scores: Any, same: Any, folds: Any = 10) -> dict[str, Any]:
    """Compute the accuracy of "same if the score is above t", with t chosen on the other folds: the LFW protocol.

    t lies midway between two neighbouring scores of the other folds, where it decides most of these pairs correctly; of
    several such places it takes the middle one.

    Args:
        scores: the similarity of each pair, higher for more alike; see `pair_scores`.
        same: for each pair, true if both are of one class.
        folds: the number of folds of consecutive pairs, or the fold of each pair.

    Returns:
        `accuracy`, the mean over the folds; `stderr`, its standard error; `thresholds`, one per fold.

    >>> pair_verification([0.9, 0.1, 0.8, 0.3], [True, False, True, False], folds=2)
    {'accuracy': 1.0, 'stderr': 0.0, 'thresholds': [0.55, 0.5]}
    """
    values, truth = _checked(scores, same)
    if np.ndim(folds) == 0:
        if not 2 <= positive_integer(folds, "folds") <= len(values):
            raise ValueError(f"folds must be between 2 and the {len(values)} pairs, got {folds}; give another number")
        fold = np.arange(len(values)) * folds // len(values)
    else:
        fold = np.unique(as_labels(folds, len(values), "folds").numpy(), return_inverse=True)[1]
        if fold.max() == 0:
            raise ValueError("folds must name at least 2 folds, got 1; the threshold comes from the other folds")
    thresholds = [_best_threshold(values[fold != f], truth[fold != f]) for f in range(fold.max() + 1)]
    accuracy = [((values > t) == truth)[fold == f].mean() for f, t in enumerate(thresholds)]
    stderr = np.std(accuracy, ddof=1) / np.sqrt(len(accuracy))
    return {"accuracy": float(np.mean(accuracy)), "stderr": float(stderr), "thresholds": thresholds}


def _best_threshold(values: np.ndarray, truth: np.ndarray) -> float:
    levels, place = np.unique(values, return_inverse=True)
    # Count the correct decisions of each cut: below the lowest level, between any two, and above the highest.
    same_below = np.concatenate([[0], np.cumsum(np.bincount(place, truth, len(levels)))])
    different_below = np.concatenate([[0], np.cumsum(np.bincount(place, ~truth, len(levels)))])
    correct = different_below + truth.sum() - same_below
    cuts = np.concatenate([[levels[0] - 1], (levels[:-1] + levels[1:]) / 2, [levels[-1] + 1]])
    best = cuts[correct == correct.max()]
    return float(best[(len(best) - 1) // 2])


def roc(scores: Any, same: Any) -> dict[str, list[float]]:
    """Compute the receiver operating characteristic, one point for each different score, strictest threshold first.

    Returns:
        `thresholds`, and the shares of different pairs (`far`) and of same pairs (`tar`) that reach each of them.

    Arguments are those of `pair_verification`.

    >>> roc([0.9, 0.4, 0.8, 0.3], [True, False, True, True])["tar"]
    [0.333..., 0.666..., 0.666..., 1.0]
    """
    values, truth = _checked(scores, same)
    levels, place = np.unique(-values, return_inverse=True)
    accepted = [np.cumsum(np.bincount(place, kind, len(levels))) / kind.sum() for kind in (~truth, truth)]
    return {"far": accepted[0].tolist(), "tar": accepted[1].tolist(), "thresholds": (-levels).tolist()}


def tar_at_far(scores: Any, same: Any, far: float = 0.001) -> float:
    """Return the share of same pairs that are accepted if at most the share `far` of the different pairs is.

    `scores` and `same` are those of `pair_verification`.

    >>> tar_at_far([0.9, 0.4, 0.8, 0.3], [True, False, True, True], far=0.1)
    0.6666666666666666
    """
    values, truth = _checked(scores, same)
    return float((values[truth] > threshold_at_far(values[~truth], far)).mean())


def threshold_at_far(impostors: np.ndarray, far: float) -> float:
    """Return the lowest threshold that at most the share `far` of the impostors' scores exceed.

    A score that ties with the threshold is not accepted; otherwise more impostors than allowed might be.

    >>> threshold_at_far(np.array([1.0, 2.0, 3.0, 4.0]), 0.25)
    3.0
    """
    if not 0 <= far <= 1:
        raise ValueError(f"far must be a share between 0 and 1, got {far}; give 0.01 for 1 %")
    allowed = int(far * len(impostors) + 1e-9)  # 0.29 · 100 is 28.999…
    return -np.inf if allowed >= len(impostors) else float(np.sort(impostors)[::-1][allowed])


def _checked(scores: Any, same: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return scores as float64 and `same` as booleans; raise ValueError for unusable ones."""
    # numpy has no bf16.
    scores, same = (value.detach().cpu().double() if isinstance(value, Tensor) else value for value in (scores, same))
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(same)
    if values.ndim != 1 or values.shape != truth.shape:
        raise ValueError(
            f"scores and same must be lists of one length, got {values.shape} and {truth.shape}; give both of a pair"
        )
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"scores must be finite, but pair {row} has {values[row]}; check the embeddings of that pair")
    known = (truth == 0) | (truth == 1)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise ValueError(f"same must be true or false, but pair {row} has {truth[row].item()!r}")
    truth = truth.astype(bool)
    if truth.all() or not truth.any():
        raise ValueError(
            f"same must hold both true and false, got {int(truth.sum())} true of {len(truth)}; give pairs of both kinds"
        )
    return values, truth
