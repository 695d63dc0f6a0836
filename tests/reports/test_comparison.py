"""The page of a comparison."""

import json
import re

import pytest

from browser import Visit, needs_chromium
from tuplet import reports


def row(loss, *scores):
    runs = [
        {"seed": seed, "folder": f"{loss}/seed_{seed}", "metrics": {"recall_at_1": score}}
        for seed, score in enumerate(scores)
    ]
    mean = {"recall_at_1": sum(scores) / len(scores)}
    return {"loss": loss, "mean": mean, "std": {"recall_at_1": 0.011}, "runs": runs, "published": []}


MEASURE = """<script>
  const table = document.querySelector(".wide");
  document.body.dataset.fits = JSON.stringify(table.scrollWidth <= table.clientWidth);
</script>"""


@needs_chromium
def test_the_table_fits_a_window(tmp_path):
    names = ["recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "map_at_r", "nmi", "f1"]
    printed = {"paper": "Unified view 2019", "method": "RAW+VTHM", "network": "bn_inception", "dim": 512}
    rows = [row(loss, 0.55, 0.57, 0.6) for loss in ("multi_similarity", "npair_angular")]
    for each in rows:
        each["mean"] |= dict.fromkeys(names, 0.567)
        each["std"] |= dict.fromkeys(names, 0.012)
        each["published"] = [{**printed, "metrics": {"recall_at_1": 0.66}}]
    (tmp_path / "comparison.json").write_text(json.dumps({"data": "photos", "benchmark": None, "rows": rows}))
    page = reports.write_comparison(tmp_path)
    page.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    visit = Visit(page, tmp_path / "profile", "--window-size=1300,900")
    assert visit.value("fits")


def test_the_chart_fits_a_phone(tmp_path):
    """The drawing for narrow windows is as wide as their column, and everything is inside of it."""
    rows = [row("hierarchical_triplet", 0.2, 0.91), row("npair", 0.55, 0.57)]
    (tmp_path / "comparison.json").write_text(json.dumps({"data": "photos", "benchmark": None, "rows": rows}))
    page = reports.write_comparison(tmp_path).read_text()
    wide, narrow = (
        re.search(rf'<div class="{name}"><svg viewBox="0 0 (\d+) \d+".*?</svg>', page)
        for name in ("for-wide", "for-narrow")
    )
    assert (wide[1], narrow[1]) == ("920", "340")
    places = [float(x) for x in re.findall(r'(?: x="| cx="|d="M)([\d.-]+)', narrow[0])]
    assert min(places) >= 0
    assert max(places) <= 340
    for drawn in (wide, narrow):
        assert drawn[0].count("<circle") == 4
        assert ">hierarchical_triplet</text>" in drawn[0]
    assert ".for-wide { display: none; } .for-narrow { display: block; }" in page


@pytest.mark.parametrize(("write", "command"), [(reports.write_comparison, "compare"), (reports.write_tuning, "tune")])
def test_another_folder_is_told_which_command_writes_the_right_one(tmp_path, write, command):
    with pytest.raises(
        FileNotFoundError, match=rf"is no \w+: it has no \w+\.json; give the folder that tuplet {command} wrote"
    ):
        write(tmp_path)
