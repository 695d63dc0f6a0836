"""`tuplet demo` from start to end."""

import json
import re

import pytest

from commands import succeeded, tuplet, typed

pytest.importorskip("matplotlib", reason="the glyphs are drawn with matplotlib's fonts")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, succeeded(tuplet("demo", cwd=folder, timeout=600))


def test_training_gains_20_points_on_unseen_characters(demo):
    _, output = demo
    recall = {name: float(re.search(rf"^{name} +([\d.]+) %", output, re.MULTILINE)[1]) for name in
              ("raw pixels", "untrained network", "trained network")}  # fmt: skip
    gain = recall["trained network"] - max(recall["raw pixels"], recall["untrained network"])
    assert gain >= 20
    assert float(re.search(r"gained ([\d.]+) points", output)[1]) == pytest.approx(gain, abs=0.06)


def test_the_demo_names_the_report_and_commands_to_try(demo):
    folder, output = demo
    assert "The report is demo/report.html" in output
    page = (folder / "demo/report.html").read_text()
    assert "raw pixels" in page
    assert "before training" in page
    assert page.count('class="point') == 1500
    assert len(re.findall(r"^  python -m tuplet \w+ .*# ", output, re.MULTILINE)) == 3


def test_the_first_suggested_command_works(demo):
    folder, output = demo
    words = re.search(r"^  python -m tuplet (.*?) +# every metric", output, re.MULTILINE)[1].split()
    kept = json.loads((folder / "demo/evaluation.json").read_text())
    assert f"{100 * kept['recall_at_1']:.2f} %" in succeeded(typed(*words, cwd=folder))
