"""`tuplet tune`: the table, the page, and the printed command, which trains with the best options."""

import json
import re
import shlex

import numpy as np
import pytest

from browser import Visit, needs_chromium
from commands import refused, succeeded, tuplet, typed

WORDS = ("tune", "my features.npz", "--trials", "8", "--seeds", "1", "--steps", "12", "--dim", "6", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    random, labels = np.random.default_rng(0), np.arange(120) // 6
    features = random.normal(size=(120, 10)) + 2 * random.normal(size=(20, 10))[labels]
    np.savez(folder / "my features.npz", features=features.astype("float32"), labels=labels)
    return folder


@pytest.fixture(scope="module")
def output(folder):
    return succeeded(tuplet(*WORDS, cwd=folder))


def test_prints_the_best_trials_and_a_command_that_trains_with_them(folder, output):
    found = json.loads((folder / "runs/my features_tuning/tuning.json").read_text())
    assert found["first_is_default"]
    assert found["space"].keys() == {"loss", "lr", "per_class"}
    best = found["best"]
    row = rf"^ +{best['trial']} +{100 * best['scores'][0]:.2f} % +loss {best['options']['loss']}, lr "
    assert re.search(row, output, re.MULTILINE)
    command = output.splitlines()[-1]
    assert command.startswith("tuplet train 'my features.npz' --out 'runs/my features_tuned' --dim 6 --steps 12 ")
    assert typed(*shlex.split(command)[1:], cwd=folder).exit_code == 0
    about = json.loads((folder / "runs/my features_tuned/run.json").read_text())
    assert {name: about["settings"][name] for name in best["options"]} == best["options"]
    assert about["settings"]["test_on"] == "test"


@needs_chromium
def test_the_page_shows_every_trial(folder, output, tmp_path):
    found = json.loads((folder / "runs/my features_tuning/tuning.json").read_text())
    visit = Visit(folder / "runs/my features_tuning/tuning.html", tmp_path)
    assert (visit.console, visit.requests) == ([], [])
    assert output.splitlines()[-1] in visit.dom.replace("&amp;", "&")
    table = visit.dom.split('id="table"')[1]
    assert sorted(map(int, re.findall(r"<tr><td>(?:<b>)?(\d+)", table))) == list(range(8))
    assert f"<b>{found['best']['trial']}</b>" in table
    complete = [row for row in found["trials"] if row["state"] == "complete"]
    options = visit.dom.split('id="options"')[1].split('id="table"')[0]
    assert options.count("<circle") == 3 * (len(complete) + 1)  # the best trial is drawn twice
    assert visit.dom.count('class="bar positive"') == len(found["importance"])


def test_continues_and_refuses_other_options(folder, output):
    again = typed(*WORDS, cwd=folder)
    assert again.exit_code == 0
    assert "trial 7" not in again.stderr  # nothing was trained
    assert again.stdout == output
    other = refused(typed(*WORDS, "--optimizer", "sgd", cwd=folder))
    assert "holds a run with --optimizer adamw, not --optimizer sgd; give another folder, or --no-resume" in other


def test_options_that_would_use_the_test_split_do_not_exist(folder):
    assert "No such option" in typed(*WORDS, "--test-on", "test", cwd=folder).output
    assert "--validation 0 would choose on the test split" in typed(*WORDS, "--validation", "0", cwd=folder).output
