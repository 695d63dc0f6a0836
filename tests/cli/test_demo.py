"""The first command that anybody runs, from start to end."""

import json
import re

import pytest

from commands import succeeded, tuplet

pytest.importorskip("matplotlib", reason="the glyphs are drawn with matplotlib's fonts")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    place = tmp_path_factory.mktemp("demo")
    return place, succeeded(tuplet("demo", cwd=place, timeout=600))


def test_unseen_characters_are_found_far_better_than_before_learning(shown):
    _, said = shown
    recall = {name: float(re.search(rf"^{name} +([\d.]+) %", said, re.MULTILINE)[1]) for name in
              ("raw pixels", "untrained network", "trained network")}  # fmt: skip
    gain = recall["trained network"] - max(recall["raw pixels"], recall["untrained network"])
    assert gain >= 20
    assert float(re.search(r"gained ([\d.]+) points", said)[1]) == pytest.approx(gain, abs=0.06)


def test_it_says_where_the_report_is_and_what_to_try(shown):
    place, said = shown
    assert "The report is demo/report.html" in said
    page = (place / "demo/report.html").read_text()
    assert "raw pixels" in page
    assert "untrained network" in page
    assert page.count('class="point') == 1500
    assert len(re.findall(r"^  python -m tuplet \w+ .*# ", said, re.MULTILINE)) == 3


def test_the_first_thing_to_try_works(shown):
    place, said = shown
    words = re.search(r"^  python -m tuplet (.*?) +# every metric", said, re.MULTILINE)[1].split()
    kept = json.loads((place / "demo/evaluation.json").read_text())
    assert f"{100 * kept['recall_at_1']:.2f} %" in succeeded(tuplet(*words, cwd=place))
