"""Compare every loss in float32, bfloat16 and float16 with its float64 oracle on random batches."""

import math
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch

from losses.cases import CASES, CLASSES, DIM
from losses.label_patterns import HUGE, embeddings
from losses.oracle_rows import by_vector

#: The largest error of a gradient, as a share of the largest number: in a narrow type that of eight roundings, since
#: losses add parts of a gradient that are rounded already.
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
#: Errors of the value, relative and absolute, and absolute ones of gradients.
VALUE_ERROR, SMALL, SMALL_GRADIENT = 1e-5, 1e-6, 3e-6
#: Relative changes of the vectors, of a few roundings to float32. A result may be further from the oracle's than the
#: errors above by as much as these changes move the oracle's: a term may start or end there, or a logarithm be steep.
NUDGES, NUDGE = 12, 2e-6


@dataclass
class Outcome:
    """Counts of comparisons by type, of those that rounding decided, and descriptions of failures."""

    batches: int = 0
    compared: Counter = field(default_factory=Counter)
    rounding: Counter = field(default_factory=Counter)
    failures: list = field(default_factory=list)

    def add(self, other):
        """Add the counts of another part of the work."""
        self.batches += other.batches
        self.compared += other.compared
        self.rounding += other.rounding
        self.failures += other.failures


def random_labels(case, rng):
    """Draw labels that suit the case: few classes, one class, all different, or huge ids."""
    n = int(rng.integers(DIM + 1 if case.labels == "many" else 2, 9))
    if case.labels == "pairs":
        return np.repeat(rng.permutation(20)[: n // 2], 2)
    if case.labels == "triplets":
        return np.array([2 * t + (k == 2) for t in range(max(1, n // 3)) for k in range(3)])
    if case.labels == "classes":
        return rng.integers(0, CLASSES, n)
    kinds = [rng.integers(0, 3, n), rng.integers(0, 3, n), np.full(n, 7), rng.permutation(n), rng.choice(HUGE, n)]
    return kinds[rng.integers(len(kinds))]


def random_batch(case, rng):
    """Draw labels and float64 vectors whose numbers all three types hold exactly."""
    labels = torch.from_numpy(np.asarray(random_labels(case, rng), np.int64))
    kind = case.kinds[rng.integers(len(case.kinds))]
    x = embeddings(len(labels), DIM, int(rng.integers(1 << 40)), kind)
    return x.bfloat16().half().double(), labels


def results(case, value, inputs):
    """Return a value, its gradients, and the largest number among both, which scales the errors of rounding.

    The gradients of copies of a vector are summed where the loss may pick any of them.
    """
    gradients = torch.autograd.grad(value, inputs, materialize_grads=True)
    value, *gradients = (each.detach().double().cpu() for each in (value, *gradients))
    largest = max(each.abs().max().item() for each in (value, *gradients))
    if case.picks:
        gradients[0] = by_vector(inputs[0].detach().double().cpu(), gradients[0])
    return value, gradients, largest


def truth_of(case, loss, x, labels):
    """Return the results of the oracle."""
    x = x.detach().requires_grad_()
    return results(case, case.truth(loss, x, labels), [x, *loss.parameters()])


def errors(ours, truth):
    """Return the errors of the value and of each gradient."""
    return [(one - other).abs() for one, other in zip((ours[0], *ours[1]), (truth[0], *truth[1]), strict=True)]


def is_equal(ours, truth, share, moved):
    """Tell whether value and gradients are finite and equal to those of the oracle, up to rounding and what `moved`."""
    if not (math.isfinite(ours[2]) and math.isfinite(truth[2])):
        return False
    most = SMALL_GRADIENT + share * max(ours[2], truth[2])
    allowed = [SMALL + VALUE_ERROR * truth[0].abs(), *[most] * len(ours[1])]
    return all(
        (error <= each + move).all() for error, each, move in zip(errors(ours, truth), allowed, moved, strict=True)
    )


def compare(case, rng, outcome, device="cpu"):
    """Compare one random batch in all types with the oracle."""
    x, labels = random_batch(case, rng)
    narrow = case.make().float()
    exact = deepcopy(narrow).double()
    truth = truth_of(case, exact, x, labels)
    narrow.to(device)
    still, moved = [0.0] * (1 + len(truth[1])), None
    outcome.batches += 1
    for dtype, share in DTYPES.items():
        inputs = [x.to(device, dtype).requires_grad_(), *narrow.parameters()]
        ours = results(case, narrow(inputs[0], labels.to(device)), inputs)
        outcome.compared[dtype] += 1
        if is_equal(ours, truth, share, still):
            continue
        if moved is None:
            changes = torch.randn(NUDGES, *x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
            near = [truth_of(case, exact, x * (1 + NUDGE * change), labels) for change in changes]
            moved = [
                max(error.max() for error in each) for each in zip(*(errors(one, truth) for one in near), strict=True)
            ]
        if is_equal(ours, truth, share, moved):
            outcome.rounding[dtype] += 1
        else:
            off = [f"{error.max():.2g}" for error in errors(ours, truth)]
            outcome.failures.append(
                f"{case} {dtype} {labels.tolist()} {x.tolist()}: {ours[0]} for {truth[0]}, off by {off}"
            )


def run(batches, seed=0, device="cpu"):
    """Compare so many random batches, of one case after another."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    for number in range(seed * batches, (seed + 1) * batches):
        compare(CASES[number % len(CASES)], rng, outcome, device)
    return outcome
