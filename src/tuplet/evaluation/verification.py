"""Are two of a kind? Verification among negatives (Sohn 2016), over folds of pairs (LFW), and by error rates."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet import counter
from tuplet.evaluation.inputs import as_labels, as_seed, as_vectors, positive_integer
from tuplet.evaluation.ranks import Members
from tuplet.evaluation.scores import Scores, similarity
from tuplet.progress import track


def verification(
    embeddings: Any,
    labels: Any,
    negatives: int = 71,
    seed: int = 0,
    *,
    metric: str = "euclidean",
    device: torch.device | str | None = None,
) -> dict[str, float | int]:
    """VRF of Sohn 2016: how often a positive is nearer to the query than all of n negatives from n other classes.

    Each query that has a positive is one trial: one of its positives, n of the other classes and one example of each
    are drawn with equal chances, as a function of the seed and the query's position alone. A tie is a failure.

    >>> verification(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), [3, 3, 8, 8], negatives=1)
    {'vrf': 1.0, 'trials': 4}
    """
    vectors = as_vectors(embeddings, device=device)
    classes, code = as_labels(labels, vectors.count).unique(return_inverse=True)
    seed = as_seed(seed)
    if len(classes) == 1:
        raise ValueError("verification needs negatives of another class, but there is only one class; give more")
    if positive_integer(negatives, "negatives") >= len(classes):
        raise ValueError(
            f"negatives must come from as many other classes, got negatives={negatives} for {len(classes)} classes; "
            f"ask for at most {len(classes) - 1}"
        )
    scores = Scores(vectors, vectors, metric)
    members = Members(code, code)
    queries = (members.size > 1).nonzero()[:, 0]
    if len(queries) == 0:
        raise ValueError(f"verification needs a class with two examples, but all {len(classes)} have one; give more")
    wins = 0
    for rows in track(queries.split(4096), "verifying"):
        drawn = torch.cat([_draw_positive(rows, members, seed), _draw_negatives(rows, code, negatives, seed)], 1)
        rows = rows[:, None].expand_as(drawn)
        exact = scores.exact(rows.flatten().to(vectors.device), drawn.flatten().to(vectors.device)).view_as(drawn)
        wins += int((exact[:, 0] > exact[:, 1:].amax(1)).sum())
    return {"vrf": wins / len(queries), "trials": len(queries)}


def _draw(below: Tensor | int, *keys: int | Tensor) -> Tensor:
    """An integer in 0 … below − 1 for each combination of the keys, from 46 random bits."""
    high, low = (counter.uniform(*keys, part).double() for part in range(2))
    return ((high + (low - 0.5) * 2.0**-23) * below).long()


def _draw_positive(rows: Tensor, members: Members, seed: int) -> Tensor:
    """Another member of each query's class: (R, 1) indices."""
    start, others = members.start[rows], members.size[rows] - 1
    pick = members.order[start + _draw(others, seed, 0, rows)]
    # The draw is among all but the last of the class, so the query itself stands for the last one.
    return torch.where(pick == rows, members.order[start + others], pick)[:, None]


def _draw_negatives(rows: Tensor, code: Tensor, negatives: int, seed: int) -> Tensor:
    """One example of each of so many different classes other than the query's: (R, n) indices.

    Floyd's sampling: of the other classes 0 … j, with j rising to the last, one is drawn; if it was drawn before, j.
    """
    order, sizes = code.argsort(stable=True), torch.bincount(code)
    others = len(sizes) - 1
    chosen = rows.new_empty(len(rows), 0)
    for j in range(others - negatives, others):
        pick = _draw(j + 1, seed, 1, rows, j)[:, None]
        chosen = torch.cat([chosen, torch.where((chosen == pick).any(1, keepdim=True), j, pick)], 1)
    chosen += chosen >= code[rows, None]
    which = _draw(sizes[chosen], seed, 2, rows[:, None], torch.arange(negatives, device=rows.device))
    return order[(sizes.cumsum(0) - sizes)[chosen] + which]


def pair_scores(
    first: Any, second: Any, *, metric: str = "euclidean", device: torch.device | str | None = None
) -> Tensor:
    """How alike row i of `first` and row i of `second` are: minus the distance, the cosine or the dot product.

    >>> pair_scores(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0]])).tolist()
    [-5.0]
    """
    a, b = as_vectors(first, "first", device), as_vectors(second, "second", device)
    if a.count != b.count:
        raise ValueError(
            f"second must have as many rows as first, {a.count}, got {b.count}; give one of each for a pair"
        )
    rows = torch.arange(a.count, device=a.device)
    return similarity(Scores(a, b, metric).exact(rows, rows), metric)


def pair_verification(scores: Any, same: Any, folds: Any = 10) -> dict[str, Any]:
    """The LFW protocol: accuracy of "same if the score is above t", t chosen on the other folds.

    `scores`: one a pair, higher for more alike (`pair_scores`); `same`: true where the pair is of one person; `folds`:
    how many folds of consecutive pairs, or the fold of each pair. t lies midway between two neighbouring scores of the
    other folds, where it decides most of them rightly; of several such places it takes the middle one. Gives the mean
    accuracy over the folds, its standard error, and the thresholds.

    >>> pair_verification([0.9, 0.1, 0.8, 0.3], [True, False, True, False], folds=2)
    {'accuracy': 1.0, 'stderr': 0.0, 'thresholds': [0.55, 0.5]}
    """
    values, truth = _pairs(scores, same)
    if np.ndim(folds) == 0:
        if not 2 <= positive_integer(folds, "folds") <= len(values):
            raise ValueError(f"folds must be between 2 and the {len(values)} pairs, got {folds}; give another number")
        fold = np.arange(len(values)) * folds // len(values)
    else:
        fold = np.unique(as_labels(folds, len(values), "folds").numpy(), return_inverse=True)[1]
        if fold.max() == 0:
            raise ValueError("folds must name at least 2 folds, got 1; the threshold comes from the other ones")
    thresholds = [_best_threshold(values[fold != f], truth[fold != f]) for f in range(fold.max() + 1)]
    accuracy = [((values > t) == truth)[fold == f].mean() for f, t in enumerate(thresholds)]
    stderr = np.std(accuracy, ddof=1) / np.sqrt(len(accuracy))
    return {"accuracy": float(np.mean(accuracy)), "stderr": float(stderr), "thresholds": thresholds}


def _best_threshold(values: np.ndarray, truth: np.ndarray) -> float:
    levels, place = np.unique(values, return_inverse=True)
    # Of the cuts below the lowest level, between any two and above the highest: how many pairs each decides rightly.
    same_below = np.concatenate([[0], np.cumsum(np.bincount(place, truth, len(levels)))])
    different_below = np.concatenate([[0], np.cumsum(np.bincount(place, ~truth, len(levels)))])
    right = different_below + truth.sum() - same_below
    cuts = np.concatenate([[levels[0] - 1], (levels[:-1] + levels[1:]) / 2, [levels[-1] + 1]])
    best = cuts[right == right.max()]
    return float(best[(len(best) - 1) // 2])


def roc(scores: Any, same: Any) -> dict[str, list[float]]:
    """The share of different pairs (`far`) and of same pairs (`tar`) that are accepted at each threshold and above.

    One point for each different score, from the strictest threshold to the laxest.

    >>> roc([0.9, 0.4, 0.8, 0.3], [True, False, True, True])["tar"]
    [0.333..., 0.666..., 0.666..., 1.0]
    """
    values, truth = _pairs(scores, same)
    levels, place = np.unique(-values, return_inverse=True)
    accepted = [np.cumsum(np.bincount(place, kind, len(levels))) / kind.sum() for kind in (~truth, truth)]
    return {"far": accepted[0].tolist(), "tar": accepted[1].tolist(), "thresholds": (-levels).tolist()}


def tar_at_far(scores: Any, same: Any, far: float = 0.001) -> float:
    """The share of same pairs that score above all but `far` of the different pairs.

    >>> tar_at_far([0.9, 0.4, 0.8, 0.3], [True, False, True, True], far=0.1)
    0.6666666666666666
    """
    values, truth = _pairs(scores, same)
    return float((values[truth] > threshold_at_far(values[~truth], far)).mean())


def threshold_at_far(impostors: np.ndarray, far: float) -> float:
    """The lowest value such that at most the share `far` of the impostors' scores are above it.

    What ties with it is not accepted, since then more impostors might be.

    >>> threshold_at_far(np.array([1.0, 2.0, 3.0, 4.0]), 0.25)
    3.0
    """
    if not 0 <= far <= 1:
        raise ValueError(f"far must be a share between 0 and 1, got {far}; give 0.01 for 1 %")
    allowed = int(far * len(impostors) + 1e-9)  # 0.29 · 100 is 28.999…
    return -np.inf if allowed >= len(impostors) else float(np.sort(impostors)[::-1][allowed])


def _pairs(scores: Any, same: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores in float64 and truths as booleans, of both kinds."""
    # NumPy has no bf16.
    scores, same = (value.detach().cpu().double() if isinstance(value, Tensor) else value for value in (scores, same))
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(same)
    if values.ndim != 1 or values.shape != truth.shape:
        raise ValueError(
            f"scores and same must be lists of one length, got {values.shape} and {truth.shape}; give one each a pair"
        )
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(
            f"scores must be finite, but pair {row} has {values[row]}; look at the embeddings of that pair"
        )
    known = (truth == 0) | (truth == 1)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise ValueError(f"same must be true or false, but pair {row} has {truth[row].item()!r}; give 1 or 0 for each")
    truth = truth.astype(bool)
    if truth.all() or not truth.any():
        raise ValueError(f"same must hold both kinds, got {int(truth.sum())} true of {len(truth)}; add the other kind")
    return values, truth
