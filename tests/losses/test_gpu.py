"""The same formulas on a GPU, where there is one: every loss in three types against the CPU in float64."""

import pytest
import torch

from losses.cases import CASES
from losses.test_engine import batch, value_and_gradient

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-3}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_gpu_equals_cpu(case, dtype):
    x, labels = batch(case, n=48, dtype=dtype)
    loss = case.make().to("cuda", torch.float64 if dtype == torch.float64 else torch.float32)
    value, gradient = value_and_gradient(loss, x.cuda(), labels.cuda(), check_labels=True)
    truth, true_gradient = value_and_gradient(case.make(), x.double(), labels)
    torch.testing.assert_close(value.cpu().double(), truth, rtol=max(TOLERANCES[dtype], 2e-5), atol=1e-6)
    error = (gradient.cpu().double() - true_gradient).norm() / true_gradient.norm().clamp_min(1e-12)
    assert error < TOLERANCES[dtype]
