"""Tests on a GPU, if there is one: the host does not wait for the device between logged steps."""

import pytest
import torch

from training_tools import events, image_set
from tuplet import losses, training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
QUICK = {
    "validation": 0.0,
    "model": "convnet",
    "model_options": {"size": 12, "channels": 3},
    "dim": 4,
    "batch_size": 16,
    "per_class": 4,
    "steps": 20,
    "device": "cuda",
    "ema": 0.9,
    **dict.fromkeys(("log_every", "evaluate_every", "checkpoint_every"), 20),
}


class NoSync(losses.RAWLoss):
    """A loss that turns every wait for the device into an error, from its 3rd to its 18th call."""

    calls = 0

    def forward(self, *given, **options):
        self.calls += 1
        torch.cuda.set_sync_debug_mode("error" if 3 <= self.calls <= 18 else "default")
        return super().forward(*given, **options)


def test_the_host_does_not_wait_for_the_device_in_steps(tmp_path):
    try:
        training.train(image_set(), tmp_path, **QUICK, loss=NoSync())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert events(tmp_path, "end")


class Broken(losses.RAWLoss):
    """A loss that is NaN in its fourth call."""

    calls = 0

    def forward(self, *given, **options):
        self.calls += 1
        return super().forward(*given, **options) * (torch.nan if self.calls == 4 else 1.0)


def test_a_nan_loss_never_reaches_the_weights(tmp_path):
    with pytest.raises(FloatingPointError, match=r"step 4: the loss is nan; .*the cause is the loss itself"):
        training.train(image_set(), tmp_path, **QUICK, loss=Broken())
    assert events(tmp_path, "failure")[0]["step"] == 4


def test_losses_equal_those_on_the_cpu(tmp_path):
    options = {**QUICK, "log_every": 1, "steps": 6, "loss": "raw"}
    training.train(image_set(), tmp_path / "gpu", **options)
    training.train(image_set(), tmp_path / "cpu", **{**options, "device": "cpu"})
    there, here = ([e["loss"] for e in events(tmp_path / side, "train")] for side in ("gpu", "cpu"))
    assert len(there) == 6
    assert there == pytest.approx(here, rel=2e-2)
