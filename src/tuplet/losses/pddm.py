"""Position-dependent deep metric: a learned similarity that finds one hard quadruplet, and learns from it."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, relu

from tuplet.errors import at_least
from tuplet.losses.base import RowLoss
from tuplet.losses.batchwise import refuse_gallery
from tuplet.rows import View, default_block_rows, masked_max, masked_min
from tuplet.rows.geometry import widest


class PDDMLoss(RowLoss):
    """PDDM loss: hinges on a learned similarity S and on squared distances, over the hardest quadruplet of a batch.

    S sees where a pair lies, not only how far apart: with u = |x − y| and v = (x + y)/2, both made unit, then
    u' = ReLU(W_u u + b_u) and v' = ReLU(W_v v + b_v), both made unit, S = w_s·ReLU(W_c [u'; v'] + b_c) + b_s.
    (i, j) is the positive pair of least S, k the negative of i and l the negative of j of greatest S. The value is

        [α + S_ik − S_ij]₊ + [α + S_jl − S_ij]₊ + weight · ([β + d_ij² − d_ik²]₊ + [β + d_ij² − d_jl²]₊).

    It is 0 without a positive pair; a hinge without its negative drops out.

    Args:
        dim: the dimension of the embeddings, and the width of the layers of S.
        alpha: α, the margin of similarities.
        beta: β, the margin of squared distances.
        weight: the weight of the hinges on distances. Both margins and this weight are those of a port by others;
            the paper's own are not confirmed.
        detach: hold the embeddings constant in S, so that its hinges train S alone, as that port does. By default
            they train both, as the paper seems to do, which is not confirmed either.

    Inputs: unit vectors; batches with several examples of each class. One quadruplet of a batch has a loss. Give
    `loss.parameters()` to the optimizer; their weight decay is the paper's γ‖W‖².

    All N² pairs are scored, O(N²·d²) in time and a few blocks in memory. It takes no gallery and has no `weights`.
    Searches compare the vectors by plain distance; `score(x, y)` is the learned similarity, for reranking.

    Related: `TripletLoss(mining="hardest")` takes a hardest triplet for each anchor, by distance.

    >>> loss = PDDMLoss(dim=4)
    >>> x = torch.eye(4)
    >>> loss(x, torch.tensor([0, 0, 1, 1])).isfinite().item(), loss.score(x[0], x[1]).shape
    (True, torch.Size([]))

    Huang, Loy, Tang: Local Similarity-Aware Deep Feature Embedding. NIPS 2016.
    """

    name, geometry, normalize = "pddm", "euclidean", True
    takes_gallery = False
    weighs_pairs = False

    def __init__(
        self, dim: int, alpha: float = 0.5, beta: float = 1.0, weight: float = 0.5, detach: bool = False
    ) -> None:
        super().__init__()
        at_least(1, dim=dim)
        self.alpha, self.beta, self.weight, self.detach = alpha, beta, weight, detach
        self.difference, self.mean = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.both, self.similarity = nn.Linear(2 * dim, dim), nn.Linear(dim, 1)

    def score(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the learned similarity of x and y, (…, dim) each: larger means more alike, and S(x, y) = S(y, x)."""
        return _score(x, y, *self._layers())

    def _layers(self) -> list[Tensor]:
        layers = (self.difference, self.mean, self.both, self.similarity)
        return [tensor for layer in layers for tensor in (layer.weight, layer.bias)]

    def value(self, view: View) -> Tensor:
        """Score all pairs without gradient, then take the hinges of the quadruplet that was found."""
        refuse_gallery(self, view)
        n, dim = view.queries.shape
        if dim != self.difference.in_features:
            raise ValueError(
                f"PDDMLoss was made with dim={self.difference.in_features}, got embeddings of dimension {dim}; "
                "make the loss with the model's dimension"
            )
        x, layers = view.queries.to(view.dtype), self._layers()
        with torch.no_grad():
            # Layers of 2·dim numbers for each pair stand where others have one.
            usual = view.block_rows or default_block_rows(n, n, view.dtype, x.device)
            small = replace(view, block_rows=max(1, usual // (2 * dim)))
            # A copy of x, since the compiler takes no tensor twice.
            least, near, greatest, far = small.each(_hardest, own=(x,), other=(x + 0,), shared=layers).unbind(1)
            i = least.argmin(0, keepdim=True)
            ends = torch.cat([i, near[i].long()])
            members = torch.cat([ends, far[ends].long()])
            defined = (least[i] != torch.inf) & (greatest[ends] != -torch.inf)
            # Among the four, the positive and the negative of either end.
            others = torch.tensor([[1, 2], [0, 3]], device=x.device)
        x = x.detach() if self.detach else x
        quadruplet = replace(view.select(ends, members), block_rows=None)
        inputs = {"own": (x[ends], others, defined), "other": (x[members],), "shared": layers}
        return quadruplet.total(self._hinges, **inputs)[0]

    def _hinges(
        self,
        d: Tensor,
        positive: Tensor,
        negative: Tensor,
        x: Tensor,
        others: Tensor,
        defined: Tensor,
        y: Tensor,
        *layers: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return both hinges of each end of the positive pair."""
        # In float64: where a ReLU leaves a short vector to be made unit, steep slopes cancel.
        wide = [each.to(widest(d.device)) for each in (x[:, None], y, *layers)]
        near_s, far_s = _score(*wide).to(d.dtype).gather(1, others).unbind(1)
        near_d, far_d = d.square().gather(1, others).unbind(1)
        hinges = relu(self.alpha + far_s - near_s) + self.weight * relu(self.beta + near_d - far_d)
        return hinges, defined


def _score(x: Tensor, y: Tensor, *layers: Tensor) -> Tensor:
    w_u, b_u, w_v, b_v, w_c, b_c, w_s, b_s = layers
    u = normalize(relu(linear(normalize((x - y).abs(), dim=-1), w_u, b_u)), dim=-1)
    v = normalize(relu(linear(normalize((x + y) / 2, dim=-1), w_v, b_v)), dim=-1)
    return linear(relu(linear(torch.cat([u, v], -1), w_c, b_c)), w_s, b_s)[..., 0]


def _hardest(d: Tensor, positive: Tensor, negative: Tensor, x: Tensor, y: Tensor, *layers: Tensor) -> Tensor:
    """Return for each query its least positive and its greatest negative similarity, each with its column."""
    s = _score(x[:, None], y, *layers)
    near = torch.where(positive, s, torch.inf).argmin(1)
    far = torch.where(negative, s, -torch.inf).argmax(1)
    return torch.stack([masked_min(s, positive), near.to(s), masked_max(s, negative), far.to(s)], 1)
