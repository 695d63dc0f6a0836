"""A batch for any loss, and what a loss makes of it."""

import torch

from losses.cases import CLASSES, DIM


def batch(case, n=24, dim=DIM, dtype=torch.float64, seed=0, unit=True):
    """A plain batch that suits the case: four per class, two for N-pair, triplets in turn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    x = torch.nn.functional.normalize(x) if unit else x
    labels = {
        "any": torch.arange(n) // 4,
        "pairs": torch.arange(n) // 2,
        "triplets": torch.arange(n) // 3 * 2 + (torch.arange(n) % 3 == 2),
        "classes": torch.arange(n) % CLASSES,
        "different": torch.arange(n),
    }[case.labels]
    return x.to(dtype), labels


def value_and_gradient(loss, x, labels, **options):
    x = x.detach().requires_grad_()
    value = loss(x, labels, **options)
    return value.detach(), torch.autograd.grad(value, x)[0]
