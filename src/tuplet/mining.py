"""Which pairs of a row are informative.

A rule looks at a block of rows and keeps some of its positives and negatives; any loss with `mining=` takes one. Masks
carry no gradient. The rules here leave out what is known to be easy, so that NaN stays in, and a diverged model is seen
in the loss. A rule of your own is a class with one method:

>>> class FarPositives(Mining):
...     def forward(self, block):
...         return block.positive & (block.distance() > 0.5), block.negative
"""

from typing import Any

import torch
from torch import Tensor

from tuplet import counter
from tuplet.rows import Block, View, masked_max, masked_min
from tuplet.shown import Shown

_CALLS = 0x1D8E4E27C47D124F  # how far a key moves from call to call; odd, so that 2⁶⁴ calls all differ


class Mining(Shown):
    """Base of the rules: override `forward(block, *inputs)`, and `inputs(view)` where it wants to see more.

    `forward` is asked block by block, and by some losses once more when the gradient comes back, after `advance`. So
    what changes from call to call, a draw or a schedule, is an input: those are taken before, and kept.

    >>> class Closing(Mining):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.register_buffer("limit", torch.tensor(2.0))
    ...     def inputs(self, view):
    ...         return (self.limit.repeat(view.size, 1),)
    ...     def forward(self, block, limit):
    ...         return block.positive, block.negative & (block.distance() < limit)
    ...     def advance(self):
    ...         self.limit *= 0.999

    A rule that keeps all positives and names one negative for each of them sets `names` and gives their columns: a loss
    then looks at those pairs alone, which is faster.
    """

    names = False

    def inputs(self, view: View) -> tuple[Tensor, ...]:
        """Tensors with a row per query that `forward` gets beside the block; first the positives, if the rule names."""
        return view.members() if self.names else ()

    def forward(self, block: Block, *inputs: Tensor) -> Any:
        """The masks of the positives and of the negatives that are kept, or columns (R, K) from a rule that names.

        A mask is a part of the block's own, as `block.positive & …`: a loss takes it as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(block)")

    def advance(self) -> None:
        """Called once after each call of the loss, for rules that draw anew each time."""


class ValidTriplet(Mining):
    """Valid triplet based hard mining, VTHM (Unified view 2019, section 5.1).

    Negative j is kept when s_ij > min_P s − ε, positive j when s_ij < max_N s + ε: just those that some triplet with
    margin ε would use. A query without negatives keeps no positives, and the other way round.

    >>> from tuplet.losses import RAWLoss
    >>> loss = RAWLoss(mining=ValidTriplet(epsilon=0.1))
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, block: Block, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Compare each negative with the hardest positive, each positive with the hardest negative."""
        s = block.similarity()
        hardest_positive = masked_min(s, block.positive)[:, None]
        hardest_negative = masked_max(s, block.negative)[:, None]
        # Without positives the minimum is +∞, without negatives the maximum −∞: nothing passes either. NaN does.
        return (
            block.positive & ~(s >= hardest_negative + self.epsilon),
            block.negative & ~(s <= hardest_positive - self.epsilon),
        )


class SemiHard(Mining):
    """All positives; for each of them the nearest negative farther than it, else the farthest negative.

    (Schroff et al., CVPR 2015; with `RAWLoss` the Unified view's RAW+SemiHard.)

    A negative that is a copy of the positive is not farther: so with distances. The products of copies may differ by
    rounding, which then decides.

    >>> from tuplet.losses import RAWLoss
    >>> loss = RAWLoss(mining=SemiHard())
    """

    names = True

    def forward(self, block: Block, *inputs: Tensor) -> Tensor:
        """The choice of each positive."""
        return semi_hard(block.farness(), block.negative, inputs[0])


class DistanceWeighted(Mining):
    """All positives; for each (a, p) one negative, drawn so that all distances are about equally likely.

    A negative at distance d is drawn with probability ∝ 1/q(max(d, cutoff)) among those with d < far, uniformly if
    there is none, where q(d) = d^(n−2)·(1 − d²/4)^((n−3)/2) is the density of distances on the unit sphere in n
    dimensions. (Wu et al., ICCV 2017; with `RAWLoss` the Unified view's RAW+DW.)

    The draw of (a, p) is a function of the seed, the number of calls so far and their places in the whole batch, so
    neither the block size nor the number of processes changes it. The count of calls is a buffer: a resumed run draws
    on.

    >>> from tuplet.losses import MarginLoss
    >>> loss = MarginLoss(mining=DistanceWeighted(cutoff=0.5, far=1.4))
    """

    names = True
    calls: Tensor

    def __init__(self, cutoff: float = 0.5, far: float = 1.4, seed: int = 0) -> None:
        super().__init__()
        if not 0 < cutoff < 2 or not 0 < far <= 2:
            raise ValueError(
                f"cutoff and far are distances on the unit sphere, got cutoff={cutoff} and far={far}; "
                "give numbers above 0, cutoff below 2 and far at most 2"
            )
        self.cutoff, self.far, self.seed = cutoff, far, seed
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def inputs(self, view: View) -> tuple[Tensor, ...]:
        """The positives by index, and for each of them a number in (0, 1)."""
        index, exists = view.members()
        # Calls, and seeds 2³² of them apart, are so far from each other that no two places meet.
        key = torch.add(index, view.positions[:, None], alpha=1 << 32)
        key = torch.add(key, self.calls + (self.seed % 2**30 << 32), alpha=_CALLS)
        return index, exists, counter.uniform_of(key)

    def forward(self, block: Block, *inputs: Tensor) -> Tensor:
        """Walk each row's cumulative probabilities up to the drawn numbers."""
        draws, square = inputs[2], block.squared_distance()
        near = block.negative & (square < self.far**2)
        some = near.any(1, keepdim=True)
        candidates = torch.where(some, near, block.negative)
        log_weights = torch.where(candidates, self._log_weights(square, block.dim) * some, -torch.inf)
        peak = log_weights.amax(1, keepdim=True).clamp_min(torch.finfo(square.dtype).min)
        cumulative = (log_weights - peak).exp().cumsum(1)
        # A draw is at most 1 − 2⁻²⁴, so its target stays below the last sum, and `right` steps over weights of zero.
        target = draws.to(square.dtype) * cumulative[:, -1:]
        return torch.searchsorted(cumulative, target, right=True).clamp_max(square.shape[1] - 1)

    def _log_weights(self, square: Tensor, n: int) -> Tensor:
        """log 1/q, by d²: −½ [(n − 2) log d² + (n − 3) log(1 − d²/4)]."""
        square = square.clamp(self.cutoff**2, (2 - 1e-6) ** 2)
        return torch.add(square.log() * (1 - n / 2), torch.rsub(square, 1, alpha=0.25).log(), alpha=(3 - n) / 2)

    def advance(self) -> None:
        """Draw other numbers next time."""
        self.calls += 1


class NonTrivial(Mining):
    """The pairs that a margin still moves: positives with d > α − m, negatives with d < α.

    (Wang et al. 2019, section 3.2.)

    >>> from tuplet.losses import MarginLoss
    >>> loss = MarginLoss(mining=NonTrivial(alpha=1.2, margin=0.4))
    """

    def __init__(self, alpha: float, margin: float) -> None:
        super().__init__()
        self.alpha, self.margin = alpha, margin

    def forward(self, block: Block, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Compare each distance with its boundary."""
        d = block.distance()
        return block.positive & ~(d <= self.alpha - self.margin), block.negative & ~(d >= self.alpha)


def semi_hard(farness: Tensor, negative: Tensor, positives: Tensor) -> Tensor:
    """For each query and each of its K positives the index of its semi-hard negative, (R, K).

    That is the nearest negative that is strictly farther than the positive, or else the farthest; the first of equals.
    """
    near = torch.where(negative, farness, torch.inf)
    farthest = torch.where(negative, farness, -torch.inf).argmax(1)
    chosen = []
    for k in range(positives.shape[1]):
        beyond = torch.where(near > farness.gather(1, positives[:, k : k + 1]), near, torch.inf).min(1)
        chosen.append(torch.where(beyond.values < torch.inf, beyond.indices, farthest))
    return torch.stack(chosen, 1) if chosen else positives
