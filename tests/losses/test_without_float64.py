"""Losses on a device that has no float64, such as Apple's GPUs: one that is simulated on the CPU."""

import sys
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from losses.batches import batch, value_and_gradient
from losses.cases import CASES

#: The simulated device has the name of one that holds no numbers, since autograd must know the name.
DEVICE = "meta"
#: What takes tensors of two devices.
MIXED = ("copy_", "_to_copy", "index", "index_put", "index_put_")


class OnDevice(torch.Tensor):
    """A tensor of the simulated device."""

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout, device=DEVICE)

    def __init__(self, inner):
        if inner.dtype == torch.float64:
            raise TypeError("the device has no float64")
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


class Device(TorchDispatchMode):
    """Runs what has a tensor of the simulated device, or names it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def run(function, args, kwargs):
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    name, there = function.overloadpacket.__name__, any(isinstance(x, OnDevice) for x in tensors)
    if there and name not in MIXED:
        assert all(isinstance(x, OnDevice) or x.ndim == 0 for x in tensors), f"{name} got tensors of two devices"
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == DEVICE
    out = function(*tree_map(on_cpu, args), **tree_map(on_cpu, kwargs))
    if function._schema.is_mutable:
        return next(x for x, about in zip(args, function._schema.arguments, strict=False) if about.is_write)
    return tree_map(lambda x: OnDevice(x) if isinstance(x, torch.Tensor) else x, out) if there else out


def on_cpu(x):
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.inner if isinstance(x, OnDevice) else x


@pytest.fixture
def device(monkeypatch):
    """Let the simulated device stand for Apple's."""
    widest = {DEVICE: torch.float32, "cpu": torch.float64}
    for name, module in list(sys.modules.items()):
        if name.startswith("tuplet.") and "widest" in vars(module):
            monkeypatch.setattr(module, "widest", lambda device: widest[device.type])
    # Neither asks the mode.
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: nullcontext())
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda x, *, device="cpu", **more: tensor(x, **more).to(device))
    return Device()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_cpu(case, device):
    x, labels = batch(case, dtype=torch.float32)
    truth = value_and_gradient(case.make().float(), x, labels)
    loss = case.make().float()
    for module in loss.modules():
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            moved = OnDevice(value.detach().clone())
            setattr(module, name, torch.nn.Parameter(moved) if isinstance(value, torch.nn.Parameter) else moved)
    with device:
        found = value_and_gradient(loss, OnDevice(x), OnDevice(labels))
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one.inner, other, rtol=1e-3, atol=1e-5)


def test_the_device_refuses_float64(device):
    with device, pytest.raises(TypeError, match="no float64"):
        torch.zeros(2, device=DEVICE).double()
    with device:
        assert torch.zeros(2, device=DEVICE).cpu().double().dtype == torch.float64
