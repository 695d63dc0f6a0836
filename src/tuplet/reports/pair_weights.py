"""Compute the weights that the loss of a run gives to the pairs of a batch (Unified view 2019, figure 1)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tuplet.losses import LOSSES, RowLoss
from tuplet.reports.run import FinishedRun
from tuplet.reports.svg import Point
from tuplet.sampling import SAMPLERS
from tuplet.training.objective import make_loss
from tuplet.training.sampler import usual_sampler

BATCH = 120
#: The largest number of points of a chart; pairs without weight are left out first.
MAX_PAIRS = 1200


@dataclass(frozen=True)
class WeightedPairs:
    """Cosine similarity and relative weight |∂loss/∂v| of pairs, and the share of pairs without weight."""

    points: list[Point]
    unweighted: float


@dataclass(frozen=True)
class PairWeights:
    """The weights that a loss gives to the positive and to the negative pairs of a batch."""

    loss: str
    positive: WeightedPairs
    negative: WeightedPairs


def pair_weights(run: FinishedRun) -> PairWeights | str:
    """Return the weights in a batch of test examples, sampled as the loss needs; or a reason why there are none."""
    name = run.settings["loss"]
    if name not in LOSSES:
        return "The weights of pairs are not shown: a run keeps only the description of a loss object."
    options = run.settings["loss_options"]
    loss = make_loss(name, options, options.get("proxies") or 1, run.embeddings.shape[1])
    if loss.proxies is not None:
        return f"The loss {name} compares examples with one learned vector per class, so pairs have no weights."
    if not loss.weighs_pairs:
        return f"The loss {name} is no function of pairs alone, so pairs have no weights."
    rows = _batch(loss, run)
    if not rows:
        return "The weights of pairs are not shown: they need at least two test classes of two examples."
    vectors, labels = run.embeddings[rows], run.labels[rows]
    weights = loss.weights(vectors, labels).abs()
    unit = normalize(vectors, dim=1)
    similarity, same = unit @ unit.T, labels[:, None] == labels
    different = ~torch.eye(len(rows), dtype=torch.bool)
    return PairWeights(name, *(_weighted(similarity[kind], weights[kind]) for kind in (same & different, ~same)))


def _weighted(similarity: Tensor, weights: Tensor) -> WeightedPairs:
    unweighted = weights <= 1e-6 * weights.max()
    order = torch.randperm(len(weights), generator=torch.Generator().manual_seed(0))
    shown = order[unweighted[order].long().argsort(stable=True)][:MAX_PAIRS]
    relative = weights / weights.max().clamp(min=torch.finfo(weights.dtype).tiny)
    points = torch.stack([similarity, relative], 1)[shown].tolist()
    return WeightedPairs([(s, w) for s, w in points], float(unweighted.float().mean()))


def _batch(loss: RowLoss, run: FinishedRun) -> list[int]:
    """Sample the rows of a batch as for training with the loss; return [] without two classes of two examples."""
    _, classes, sizes = run.labels.unique(return_inverse=True, return_counts=True)
    rows = (sizes[classes] > 1).nonzero()[:, 0]
    labels, counts = run.labels[rows], sizes[sizes > 1]
    if len(counts) < 2:
        return []
    kind, per_class = SAMPLERS[usual_sampler(loss)], min(4, int(counts.min()))
    each = kind.group_size or per_class
    inputs: dict[str, Any] = {"embed": run.embeddings[rows].__getitem__} if kind.needs_embeddings else {}
    sampler = kind.of_size(labels, min(len(counts), BATCH // each) * each, per_class, **inputs)
    return rows[next(iter(sampler))].tolist()
