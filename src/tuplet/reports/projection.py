"""A map of embeddings: points of the plane whose neighbours are neighbours in the full space too.

Principal components give the start, and t-SNE (van der Maaten, Hinton 2008) moves the points: neighbours attract,
everyone else repels. Exact, deterministic, and made for the few thousand points that a picture can show.
"""

import torch
from torch import Tensor

#: More would not fit into a picture, and time grows with the square.
MAX_POINTS = 1500
STEPS = 250
#: How many neighbours count, roughly.
PERPLEXITY = 30.0
EXAGGERATION = 12.0


def sample(labels: Tensor, count: int = MAX_POINTS) -> Tensor:
    """Rows for a map, at most `count`, in order: as evenly from all classes as their sizes allow.

    >>> sample(torch.tensor([5, 5, 5, 5, 8, 8]), 4).tolist()
    [0, 1, 4, 5]
    """
    order = labels.argsort(stable=True)
    firsts = torch.searchsorted(labels[order], labels[order])
    turn = torch.empty_like(order)
    turn[order] = torch.arange(len(order)) - firsts  # the how many-th of its class a row is
    return turn.argsort(stable=True)[:count].sort().values


def layout(vectors: Tensor, steps: int = STEPS) -> Tensor:
    """Points (N, 2) from 0 to 1 for vectors (N, d).

    >>> points = layout(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
    >>> points.shape, points.min().item(), points.max().item()
    (torch.Size([40, 2]), 0.0, 1.0)
    """
    x = principal_components(vectors.double(), 50).float()
    y = x[:, :2] if x.shape[1] > 1 else torch.cat([x, torch.zeros(len(x), 2 - x.shape[1])], 1)
    if len(x) > 3 and bool(x.any()):
        y = _descend(_affinities(x), 1e-4 * y / y.std(), steps)
    low, high = y.amin(0), y.amax(0)
    return torch.where(high > low, (y - low) / (high - low), 0.5)


def principal_components(x: Tensor, count: int) -> Tensor:
    """The vectors in the at most `count` directions along which they vary most, the signs fixed."""
    x = x - x.mean(0)
    _, directions = torch.linalg.eigh(x.T @ x)
    directions = directions.flip(1)[:, :count]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return x @ (directions * largest.sign())


def _affinities(x: Tensor) -> Tensor:
    """Symmetric probabilities (N, N): Gaussians, each as wide as gives its point `PERPLEXITY` neighbours."""
    square = torch.cdist(x, x).square().fill_diagonal_(torch.inf)
    square = square - square.amin(1, keepdim=True)
    wanted = torch.tensor(min(PERPLEXITY, (len(x) - 1) / 3)).log()
    low, high = torch.zeros(len(x), 1), torch.full((len(x), 1), torch.inf)
    precision = torch.ones(len(x), 1)
    for _ in range(50):
        p = torch.softmax(-precision * square, 1)
        wide = torch.special.entr(p).sum(1, keepdim=True) > wanted
        low, high = torch.where(wide, precision, low), torch.where(wide, high, precision)
        precision = torch.where(high.isinf(), 2 * precision, (low + high) / 2)
    return (p + p.T) / (2 * len(x))


def _descend(p: Tensor, y: Tensor, steps: int) -> Tensor:
    """Move the points down the gradient of KL(p ‖ q), with q their Cauchy similarities in the plane."""
    rate = max(len(y) / EXAGGERATION / 4, 50.0)
    speed, gains = torch.zeros_like(y), torch.ones_like(y)
    near, force = torch.empty_like(p), torch.empty_like(p)
    for step in range(steps):
        early = step < steps // 4
        norms = y.square().sum(1)
        torch.addmm(norms + 1, y, y.T, alpha=-2, out=near)
        near.add_(norms[:, None]).reciprocal_().fill_diagonal_(0)
        # (pull·p − q)·near with q = near / Σ near
        torch.mul(near, -1 / near.sum(), out=force)
        force.add_(p, alpha=EXAGGERATION if early else 1).mul_(near)
        gradient = 4 * (force.sum(1, keepdim=True) * y - force @ y)
        gains = torch.where(gradient.sign() != speed.sign(), gains + 0.2, (gains * 0.8).clamp(min=0.01))
        speed = (0.5 if early else 0.8) * speed - rate * gains * gradient
        y = y + speed - speed.mean(0)
    return y
