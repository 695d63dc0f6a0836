"""A GPU machine without Triton runs large batches eagerly, and warns once."""

import warnings

import torch

from losses.batches import batch, value_and_gradient
from losses.cases import BY_NAME
from tuplet.rows import paths


def test_without_a_compiler_it_runs_eagerly_and_warns_once(monkeypatch):
    monkeypatch.setattr(paths, "has_triton", lambda: False)
    monkeypatch.setattr(paths, "_is_large_on_gpu", lambda work: True)
    monkeypatch.setattr(paths, "_warned", False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name in ("raw_vthm", "contrastive", "nca"):
            case = BY_NAME[name]
            x, labels = batch(case)
            value, _ = value_and_gradient(case.make(), x, labels)
            torch.testing.assert_close(value, case.oracle(x, labels))
    assert [str(warning.message) for warning in said] == [
        "Tuplet runs large batches on this GPU without compiling them, since Triton cannot be used here; "
        "install triton for several times the speed"
    ]
