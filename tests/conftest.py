import os
import signal

# The tests are many small computations: one thread each, here and in the processes that they start. Threads are counted
# when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and the commands that are interrupted here would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if not torch.cuda.is_available():
    # Triton's kernels then run in its interpreter, which it decides when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

_checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("test", max_examples=20, deadline=None, derandomize=True, suppress_health_check=_checks)
settings.register_profile("soak", max_examples=1000, deadline=None, suppress_health_check=_checks)
settings.load_profile("test")


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long tests at their full counts")


def pytest_configure(config):
    if config.getoption("--soak"):
        settings.load_profile("soak")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Let the random numbers of a test not depend on the tests that this process has run before."""
    torch.default_generator.manual_seed(0)


@pytest.fixture
def soak(request):
    """True in `make soak`: a long test then runs its full count instead of a sample."""
    return request.config.getoption("--soak")


@pytest.fixture
def only_packaged_weights(monkeypatch):
    """Hide weights that this machine has in other folders, which would be chosen or named too."""
    for variable in ("TUPLET_WEIGHTS", "TUPLET_DATA"):
        monkeypatch.delenv(variable, raising=False)
