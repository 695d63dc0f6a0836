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

#: The largest error of a gradient, as a share of its largest entry: that of a few roundings to its type.
DTYPES = {torch.float32: 1e-4, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
#: Errors of the value, relative and absolute.
VALUE_ERROR, SMALL = 3e-5, 3e-6
#: Absolute errors of gradients: of all, and of losses whose logarithms have slopes up to 1/ε, which cancel.
SMALL_GRADIENT, STEEP = 3e-5, {"nra": 3e-2, "nra_straight": 3e-2}
#: Relative changes of the vectors that no narrow type could hold; where they change the oracle's own result, a term
#: starts or ends at these vectors, and rounding decides.
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


def is_equal(ours, truth, error, small):
    """Tell whether value and gradients are finite and equal to those of the oracle, up to rounding."""
    (value, gradients, own_largest), (true_value, true_gradients, largest) = ours, truth
    if not (math.isfinite(own_largest) and abs(value - true_value) <= SMALL + VALUE_ERROR * abs(true_value)):
        return False
    most = small + error * max(own_largest, largest)
    return all(
        ((gradient - true).abs() <= most).all() for gradient, true in zip(gradients, true_gradients, strict=True)
    )


def compare(case, rng, outcome, device="cpu"):
    """Compare one random batch in all types with the oracle."""
    x, labels = random_batch(case, rng)
    narrow = case.make().float()
    exact = deepcopy(narrow).double()
    truth = truth_of(case, exact, x, labels)
    narrow.to(device)
    nudged, small = [], STEEP.get(case.name, SMALL_GRADIENT)
    outcome.batches += 1
    for dtype, error in DTYPES.items():
        inputs = [x.to(device, dtype).requires_grad_(), *narrow.parameters()]
        ours = results(case, narrow(inputs[0], labels.to(device)), inputs)
        outcome.compared[dtype] += 1
        if is_equal(ours, truth, error, small):
            continue
        if not nudged:
            changes = torch.randn(NUDGES, *x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
            nudged = [truth_of(case, exact, x * (1 + NUDGE * change), labels) for change in changes]
        if any(is_equal(ours, near, error, small) for near in nudged):
            outcome.rounding[dtype] += 1
        else:
            outcome.failures.append(f"{case} {dtype} {labels.tolist()} {x.tolist()}: {ours[0]} for {truth[0]}")


def run(batches, seed=0, device="cpu"):
    """Compare so many random batches, of one case after another."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    for number in range(seed * batches, (seed + 1) * batches):
        compare(CASES[number % len(CASES)], rng, outcome, device)
    return outcome
