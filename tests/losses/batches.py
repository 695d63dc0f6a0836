"""Make a batch that suits a loss, and compute value and gradient."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from losses.cases import CLASSES, DIM
from tuplet import losses


def batch(case, n=24, dim=DIM, dtype=torch.float64, seed=0, unit=True):
    """Return a batch that suits the case: four per class, two for N-pair, triplets in turn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    x = torch.nn.functional.normalize(x) if unit else x
    labels = {
        **dict.fromkeys(("any", "many", "partition", "same"), torch.arange(n) // 4),
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


class LargestTensor(TorchDispatchMode):
    """Record the number of elements of the largest tensor made in this mode."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(out) if torch.is_tensor(x)]
        self.numbers = max(self.numbers, *sizes, 0)
        return out


def assert_earlier_values_keep_their_gradients(x, labels):
    """Check that calls of one graph, which share memory, do not overwrite values that still need a gradient."""
    loss = losses.RAWLoss()
    inputs = [(k * x).requires_grad_() for k in (1, 2, 3)]
    truth = [value_and_gradient(losses.RAWLoss(), y, labels)[1] for y in inputs]
    values = [loss(y, labels) for y in inputs]
    for value, y, gradient in reversed(list(zip(values, inputs, truth, strict=True))):
        assert torch.equal(torch.autograd.grad(value, y, retain_graph=True)[0], gradient)
        assert torch.equal(torch.autograd.grad(value, y)[0], gradient)
