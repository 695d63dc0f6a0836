"""Mining rules: choose the informative pairs of each row.

A rule gets a block of rows and keeps some of its positives and negatives; any loss with `mining=` takes one. Masks
carry no gradient. The rules drop pairs that are known to be easy, so NaN stays in, and a diverged model shows in the
loss. A rule of your own is a class with one method:

>>> class FarPositives(Mining):
...     def forward(self, block):
...         return block.positive & (block.distance() > 0.5), block.negative
"""

from typing import Any

import torch
from torch import Tensor, nn

from tuplet import rng
from tuplet.errors import did_you_mean
from tuplet.rows import Block, View, masked_max, masked_min

_CALL_STEP = 0x1D8E4E27C47D124F  # added to a key at each call; odd, so that 2⁶⁴ calls all differ


def settings_repr(module: nn.Module) -> str:
    """Return the settings of a module that are numbers, truth values or words, for its `repr`.

    >>> settings_repr(ValidTriplet(epsilon=0.2))
    'epsilon=0.2'
    """
    settings = {name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"}
    plain = {name: value for name, value in settings.items() if isinstance(value, bool | int | float | str)}
    return ", ".join(f"{name}={value!r}" for name, value in plain.items())


class Mining(nn.Module):
    """Base class of mining rules: override `forward(block, *inputs)`, and `inputs(view)` for further inputs.

    `forward` is called for each block, and by some losses again in the backward pass, after `advance`. So pass what
    changes from call to call, such as a draw or a schedule, as an input: inputs are computed once per call.

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

    A rule that keeps all positives and names one negative for each of them sets `names = True` and returns the columns
    of the negatives: a loss then computes those pairs alone, which is faster.
    """

    names = False

    def extra_repr(self) -> str:
        """Return the settings, as `repr` shows them."""
        return settings_repr(self)

    def inputs(self, view: View) -> tuple[Tensor, ...]:
        """Return tensors with a row per query that `forward` gets; a rule that names begins with the positives."""
        return view.members() if self.names else ()

    def forward(self, block: Block, *inputs: Tensor) -> Any:
        """Return the masks of the positives and negatives to keep, or columns (R, K) from a rule that names.

        A mask must be a part of the block's own, as in `block.positive & …`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(block)")

    def advance(self) -> None:
        """Update the state after each call of the loss, for rules whose draws differ between calls."""


class ValidTriplet(Mining):
    """Keep the pairs of valid triplets: valid triplet based hard mining, VTHM (Unified view 2019, section 5.1).

    Negative j is kept if s_ij > min_P s − ε, positive j if s_ij < max_N s + ε: the pairs that some triplet with
    margin ε uses. A query without negatives keeps no positives, and the other way round. Others call this
    multi-similarity mining.

    Args:
        epsilon: ε, the margin of the triplets; a larger one keeps more pairs.

    >>> from tuplet.losses import RAWLoss
    >>> loss = RAWLoss(mining=ValidTriplet(epsilon=0.1))
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, block: Block, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Compare each negative with the hardest positive, and each positive with the hardest negative."""
        s = block.similarity()
        hardest_positive = masked_min(s, block.positive)[:, None]
        hardest_negative = masked_max(s, block.negative)[:, None]
        # Without positives the minimum is +∞, without negatives the maximum −∞, and nothing is kept. NaN is kept.
        return (
            block.positive & ~(s >= hardest_negative + self.epsilon),
            block.negative & ~(s <= hardest_positive - self.epsilon),
        )


class SemiHard(Mining):
    """Keep all positives, and for each of them the nearest negative farther than it, or else the farthest negative.

    (Schroff et al., CVPR 2015; with `RAWLoss` the Unified view's RAW+SemiHard.) A negative that is a copy of the
    positive is not farther; with dot products, rounding decides about copies.

    >>> from tuplet.losses import RAWLoss
    >>> loss = RAWLoss(mining=SemiHard())
    """

    names = True

    def forward(self, block: Block, *inputs: Tensor) -> Tensor:
        """Return the negative of each positive."""
        return semi_hard(block.farness(), block.negative, inputs[0])


class DistanceWeighted(Mining):
    """Keep all positives, and draw one negative for each (a, p), so that all distances are about equally likely.

    A negative at distance d is drawn with probability ∝ 1/q(max(d, cutoff)) among those with d < far, uniformly if
    there is none, where q(d) = d^(n−2)·(1 − d²/4)^((n−3)/2) is the density of distances on the unit sphere in n
    dimensions. (Wu et al., ICCV 2017; with `RAWLoss` the Unified view's RAW+DW.)

    The draw of (a, p) is a function of the seed, the number of calls and the positions of a and p in the whole batch,
    so it depends neither on the block size nor on the number of processes. The number of calls is a buffer: a resumed
    run continues its draws.

    Args:
        cutoff: the distance below which all negatives are equally likely, above 0 and below 2.
        far: the distance from which on negatives are not drawn, above 0 and at most 2.
        seed: the seed of the draws.

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
        """Return the positives by index, and for each of them a random number in (0, 1)."""
        index, exists = view.members()
        # Calls, and seeds that count as 2³² calls each, are so far apart that no two positions get one key.
        key = torch.add(index, view.positions[:, None], alpha=1 << 32)
        key = torch.add(key, self.calls + (self.seed % 2**30 << 32), alpha=_CALL_STEP)
        return index, exists, rng.uniform_of(key)

    def forward(self, block: Block, *inputs: Tensor) -> Tensor:
        """Find each drawn number in the cumulative probabilities of its row."""
        draws, square = inputs[2], block.squared_distance()
        near = block.negative & (square < self.far**2)
        some = near.any(1, keepdim=True)
        candidates = torch.where(some, near, block.negative)
        log_weights = torch.where(candidates, self._log_weights(square, block.dim) * some, -torch.inf)
        peak = log_weights.amax(1, keepdim=True).clamp_min(torch.finfo(square.dtype).min)
        cumulative = (log_weights - peak).exp().cumsum(1)
        # A draw is at most 1 − 2⁻²⁴, so its target stays below the last sum; `right` skips weights of zero.
        target = draws.to(square.dtype) * cumulative[:, -1:]
        return torch.searchsorted(cumulative, target, right=True).clamp_max(square.shape[1] - 1)

    def _log_weights(self, square: Tensor, n: int) -> Tensor:
        """Return log 1/q from d²: −½ [(n − 2) log d² + (n − 3) log(1 − d²/4)]."""
        square = square.clamp(self.cutoff**2, (2 - 1e-6) ** 2)
        # Sums of products as single operations: on a GPU each operation is a launch.
        return torch.add(square.log() * (1 - n / 2), torch.rsub(square, 1, alpha=0.25).log(), alpha=(3 - n) / 2)

    def advance(self) -> None:
        """Draw other numbers at the next call."""
        self.calls += 1


class NonTrivial(Mining):
    """Keep the pairs that violate a margin: positives with d > α − m, negatives with d < α.

    (Wang et al. 2019, section 3.2; `RankedListLoss` chooses the same pairs.)

    Args:
        alpha: α, the distance beyond which negatives should lie.
        margin: m; positives should lie within α − m.

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
    """Return the index of the semi-hard negative for each of the K positives of each query, (R, K).

    It is the nearest negative that is strictly farther than the positive, or else the farthest; the first of equals.
    """
    near = torch.where(negative, farness, torch.inf)
    farthest = torch.where(negative, farness, -torch.inf).argmax(1)
    chosen = []
    for k in range(positives.shape[1]):
        beyond = torch.where(near > farness.gather(1, positives[:, k : k + 1]), near, torch.inf).min(1)
        chosen.append(torch.where(beyond.values < torch.inf, beyond.indices, farthest))
    return torch.stack(chosen, 1) if chosen else positives


#: The rules by name.
MINING: dict[str, type[Mining]] = {
    "distance_weighted": DistanceWeighted,
    "non_trivial": NonTrivial,
    "semi_hard": SemiHard,
    "valid_triplet": ValidTriplet,
}


def as_rule(mining: Mining | str | None) -> Mining | None:
    """Return the rule for the argument `mining` of a loss: a rule, the name of one with its defaults, or None.

    >>> as_rule("valid_triplet")
    ValidTriplet(epsilon=0.1)
    """
    if isinstance(mining, str):
        if mining not in MINING:
            raise ValueError(f"there is no mining {mining!r}; {did_you_mean(mining, MINING)}")
        try:
            return MINING[mining]()
        except TypeError as error:
            raise ValueError(
                f"mining {mining!r} has options without a default; give the rule: "
                f"tuplet.mining.{MINING[mining].__name__}(…)"
            ) from error
    if mining is not None and not isinstance(mining, Mining):
        raise TypeError(f"mining is {mining!r}; give a rule such as tuplet.mining.ValidTriplet(), its name, or None")
    return mining
