"""Hypothesis strategies for batches: labels that break things, and vectors with copies and collapses."""

import torch
from hypothesis import strategies as st

# Neighbours that float32 and float64 cannot tell apart.
HUGE = [2**62, 2**62 + 1, -(2**62), -(2**62) - 1, 2**24, 2**24 + 1]
KINDS = ["free", "unit", "duplicates", "unit_duplicates", "collapsed"]


def labels(smallest=2, largest=14):
    """Lists of ints: few classes unsorted and with singletons, one class only, all different, huge and negative ids."""
    sizes = st.integers(smallest, largest)

    def of(ids):
        return st.lists(ids, min_size=smallest, max_size=largest)

    return st.one_of(
        of(st.integers(0, 3)),
        of(st.integers(-4, -1)),
        of(st.sampled_from(HUGE)),
        st.tuples(sizes, st.integers(-5, 5)).map(lambda drawn: [drawn[1]] * drawn[0]),
        sizes.flatmap(lambda n: st.permutations(range(-2, n - 2))),
    )


def paired_labels(most=6):
    """Lists with exactly two of each class, in any order."""
    ids = st.sampled_from([*range(-3, 4), *HUGE])
    return st.lists(ids, min_size=1, max_size=most, unique=True).flatmap(lambda some: st.permutations(some + some))


def class_labels(num_classes, smallest=1, largest=14):
    """Lists of ints from 0 to num_classes − 1, for the losses with proxies."""
    return st.lists(st.integers(0, num_classes - 1), min_size=smallest, max_size=largest)


def embeddings(n, dim, seed, kind="free"):
    """Return a float64 tensor (n, dim), equal for equal arguments; `kind` is one of KINDS."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, but the kinds are {KINDS}")
    if kind.startswith("unit"):
        x = torch.nn.functional.normalize(x)
    if kind.endswith("duplicates"):
        x = x[torch.randint(0, (n + 1) // 2, (n,), generator=generator)]
    if kind == "collapsed":
        x = torch.nn.functional.normalize(x[:1]).repeat(n, 1)
    return x
