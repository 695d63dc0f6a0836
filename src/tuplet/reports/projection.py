"""Project embeddings to the plane so that neighbours stay neighbours, with t-SNE (van der Maaten, Hinton 2008).

The start is the first two principal components. Exact, deterministic, and made for a few thousand points.
"""

import torch
from torch import Tensor

#: More points would not be visible, and the time grows with the square.
MAX_POINTS = 1500
STEPS = 250
#: The effective number of neighbours of a point.
PERPLEXITY = 30.0
EXAGGERATION = 12.0


def sample(labels: Tensor, count: int = MAX_POINTS) -> Tensor:
    """Return at most `count` rows in order, drawn as evenly from all classes as their sizes allow.

    >>> sample(torch.tensor([5, 5, 5, 5, 8, 8]), 4).tolist()
    [0, 1, 4, 5]
    """
    order = labels.argsort(stable=True)
    firsts = torch.searchsorted(labels[order], labels[order])
    position = torch.empty_like(order)  # of a row within its class
    position[order] = torch.arange(len(order)) - firsts
    return position.argsort(stable=True)[:count].sort().values


def layout(vectors: Tensor) -> Tensor:
    """Return points (N, 2) between 0 and 1 for vectors (N, d).

    >>> points = layout(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
    >>> points.shape, points.min().item(), points.max().item()
    (torch.Size([40, 2]), 0.0, 1.0)
    """
    x = principal_components(vectors.double(), 50).float()
    y = x[:, :2] if x.shape[1] > 1 else torch.cat([x, torch.zeros(len(x), 2 - x.shape[1])], 1)
    if len(x) > 3 and bool(x.any()):
        y = _descend(_affinities(x), 1e-4 * y / y.std())
    low, high = y.amin(0), y.amax(0)
    return torch.where(high > low, (y - low) / (high - low), 0.5)


def principal_components(x: Tensor, count: int) -> Tensor:
    """Return at most `count` principal components of the vectors, with fixed signs."""
    x = x - x.mean(0)
    _, directions = torch.linalg.eigh(x.T @ x)
    directions = directions.flip(1)[:, :count]
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return x @ (directions * largest.sign())


def _affinities(x: Tensor) -> Tensor:
    """Return symmetric probabilities (N, N) from Gaussians whose width gives each point `PERPLEXITY` neighbours."""
    square = torch.cdist(x, x).square().fill_diagonal_(torch.inf)
    square = square - square.amin(1, keepdim=True)
    target = torch.tensor(min(PERPLEXITY, (len(x) - 1) / 3)).log()
    low, high = torch.zeros(len(x), 1), torch.full((len(x), 1), torch.inf)
    precision = torch.ones(len(x), 1)
    for _ in range(50):
        p = torch.softmax(-precision * square, 1)
        wide = torch.special.entr(p).sum(1, keepdim=True) > target
        low, high = torch.where(wide, precision, low), torch.where(wide, high, precision)
        precision = torch.where(high.isinf(), 2 * precision, (low + high) / 2)
    return (p + p.T) / (2 * len(x))


def _descend(p: Tensor, y: Tensor) -> Tensor:
    """Minimise KL(p ‖ q) by gradient descent, with q the Cauchy similarities of the points in the plane."""
    lr = max(len(y) / EXAGGERATION / 4, 50.0)
    velocity, gains = torch.zeros_like(y), torch.ones_like(y)
    near, force = torch.empty_like(p), torch.empty_like(p)
    for step in range(STEPS):
        early = step < STEPS // 4
        norms = y.square().sum(1)
        torch.addmm(norms + 1, y, y.T, alpha=-2, out=near)
        near.add_(norms[:, None]).reciprocal_().fill_diagonal_(0)
        # (exaggeration·p − q)·near with q = near / Σ near
        torch.mul(near, -1 / near.sum(), out=force)
        force.add_(p, alpha=EXAGGERATION if early else 1).mul_(near)
        gradient = 4 * (force.sum(1, keepdim=True) * y - force @ y)
        gains = torch.where(gradient.sign() != velocity.sign(), gains + 0.2, (gains * 0.8).clamp(min=0.01))
        velocity = (0.5 if early else 0.8) * velocity - lr * gains * gradient
        y = y + velocity - velocity.mean(0)
    return y
