"""A GPU machine on which nothing can be compiled runs the formulas as they stand, and says so once."""

import functools
import warnings

import torch

from losses.batches import batch, value_and_gradient
from losses.cases import BY_NAME
from tuplet.rows import engine


def test_without_a_compiler_it_runs_eagerly_and_says_so_once(monkeypatch):
    monkeypatch.setattr(engine, "has_triton", lambda: False)
    monkeypatch.setattr(engine, "worth_compiling", lambda table: True)
    monkeypatch.setattr(engine, "_uncompiled_step", functools.cache(engine._uncompiled_step.__wrapped__))
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
