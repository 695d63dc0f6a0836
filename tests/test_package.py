"""The front door: what `import tuplet` gives, and what it costs."""

import subprocess
import sys

import pytest

import tuplet


def test_rooms_open_when_first_used():
    script = (
        "import sys, tuplet; assert 'torch' not in sys.modules; tuplet.losses.RAWLoss(); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_rooms_are_listed_before_they_are_used():
    script = "import sys, tuplet; assert {*tuplet.__all__} <= {*dir(tuplet)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_front_calls():
    from tuplet.models import load
    from tuplet.training import train

    assert tuplet.load is load
    assert tuplet.train is train


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'lose'"):
        tuplet.lose  # noqa: B018 (the access is the test)
