"""How the loss of a run weighs the pairs of a real batch (Unified view 2019, figure 1)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tuplet import losses, sampling
from tuplet.losses import RowLoss
from tuplet.reports.charts import Point
from tuplet.reports.run import Run
from tuplet.training.objective import LOSSES, make_loss
from tuplet.training.sampler import usual_sampler

BATCH = 120
#: Points of a chart; of more pairs, those without weight are the first to be left out.
MAX_PAIRS = 1200
_WITH_PROXIES = (losses.ProxyNCALoss, losses.ProxyAnchorLoss, losses.SoftmaxLoss)


@dataclass(frozen=True)
class Pairs:
    """Cosine similarity and weight |∂loss/∂v| of pairs, the heaviest having weight 1, and the share without any."""

    points: list[Point]
    idle: float


@dataclass(frozen=True)
class Weighing:
    """The pairs of a batch as a loss weighs them."""

    loss: str
    positive: Pairs
    negative: Pairs


def weighing(run: Run) -> Weighing | str:
    """The weights in a batch of test examples, sampled as the loss needs; or the reason why there are none."""
    name = run.settings["loss"]
    if name not in LOSSES:
        return "The weights of pairs are not shown: the loss was made by hand, and a run keeps only its description."
    loss = make_loss(name, run.settings["loss_options"], 1, run.embeddings.shape[1])
    if isinstance(loss, _WITH_PROXIES):
        return f"The loss {name} compares examples with one learned vector a class, so it weighs no pairs of examples."
    rows = _batch(loss, run)
    if not rows:
        return "The weights of pairs are not shown: they need at least two test classes of two examples."
    vectors, labels = run.embeddings[rows], run.labels[rows]
    weights = loss.weights(vectors, labels).abs()
    unit = normalize(vectors, dim=1)
    similarity, same = unit @ unit.T, labels[:, None] == labels
    apart = ~torch.eye(len(rows), dtype=torch.bool)
    return Weighing(name, *(_pairs(similarity[kind], weights[kind]) for kind in (same & apart, ~same)))


def _pairs(similarity: Tensor, weights: Tensor) -> Pairs:
    idle = weights <= 1e-6 * weights.max()
    order = torch.randperm(len(weights), generator=torch.Generator().manual_seed(0))
    shown = order[idle[order].long().argsort(stable=True)][:MAX_PAIRS]
    relative = weights / weights.max().clamp(min=torch.finfo(weights.dtype).tiny)
    points = torch.stack([similarity, relative], 1)[shown].tolist()
    return Pairs([(s, w) for s, w in points], float(idle.float().mean()))


def _batch(loss: RowLoss, run: Run) -> list[int]:
    """The rows of a batch such as the loss is trained on."""
    _, place, sizes = run.labels.unique(return_inverse=True, return_counts=True)
    rows = (sizes[place] > 1).nonzero()[:, 0]
    labels, counts = run.labels[rows], sizes[sizes > 1]
    classes = len(counts)
    if classes < 2:
        return []
    kind = usual_sampler(loss)
    if kind == "npair":
        sampler: sampling.base.ClassSampler = sampling.NPairSampler(labels, min(classes, BATCH // 2))
    elif kind == "triplet":
        sampler = sampling.TripletSampler(labels, min(classes, BATCH // 3))
    else:
        each = min(4, int(counts.min()))
        sampler = sampling.ClassBalancedSampler(labels, min(classes, BATCH // each), each)
    return rows[next(iter(sampler))].tolist()
