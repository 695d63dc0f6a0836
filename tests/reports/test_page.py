"""The report: complete, self-contained, safe, and working in a real browser."""

import html
import json
import os
import re
import zipfile
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from browser import Visit, needs_chromium
from report_runs import image_run, write_run
from tuplet import data as datasets
from tuplet import reports
from tuplet.reports.examples import ShownExamples, read_kept, write_kept

SECTIONS = ["headline", "map", "learning", "retrieval", "worst", "typical", "confused", "weights", "settings"]
NASTY = ("<script>alert(1)</script>", '"quoted" & co', "a'b", "Ω ≠ ω", "{brace}", "x" * 80)


class Elements(HTMLParser):
    """The elements of a page with their attributes; fails if tags are not nested correctly."""

    VOID = ("meta", "link", "img", "input", "br")

    def __init__(self, page):
        super().__init__()
        self.open, self.found = [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_run(tmp_path_factory.mktemp("page"), NASTY, noise=0.9)


@pytest.fixture(scope="module")
def page(folder):
    path = reports.write(folder)
    assert path == folder / "report.html"
    assert [each.name for each in folder.iterdir() if each.name.endswith(".part")] == []
    return path.read_text()


def test_all_sections_are_present_in_order(page):
    found = [attributes["id"] for tag, attributes in Elements(page).found if tag in ("section", "header")]
    assert found == SECTIONS


def test_the_page_loads_nothing(page):
    for tag, attributes in Elements(page).found:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, name, attributes[name][:80])
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|https?://", page)


def test_class_names_are_escaped(page):
    scripts = [tag for tag, _ in Elements(page).found if tag == "script"]
    assert len(scripts) == 1
    assert "<script>alert" not in page


def test_a_name_that_is_not_utf8_is_escaped(tmp_path):
    names = ("ant", os.fsdecode(b"\xe9l\xe9phant"))
    written = reports.write(image_run(tmp_path, names)).read_text()
    assert r"\udce9l\udce9phant" in written


def test_every_example_is_on_the_map_with_its_image(page):
    elements = Elements(page).found
    points = [attributes for _, attributes in elements if attributes.get("class", "").startswith("point")]
    assert len(points) == 36
    assert sum(tag == "image" for tag, _ in elements) == 36
    assert sorted({point["data-class"] for point in points}) == list("012345")


def test_the_same_run_gives_the_same_page(folder, page):
    assert reports.write(folder).read_text() == page


def test_feature_vectors_have_a_report(tmp_path):
    labels = np.arange(40) // 5
    np.savez(tmp_path / "features.npz", features=np.random.default_rng(0).normal(size=(40, 4)), labels=labels)
    data = datasets.open(tmp_path / "features.npz")
    folder = write_run(tmp_path / "run", data, tmp_path / "features.npz", loss="proxy_anchor")
    page = reports.write(folder).read_text()
    assert [attributes["id"] for tag, attributes in Elements(page).found if tag in ("section", "header")] == SECTIONS
    assert "unseen examples find their own class first" in page
    assert "so pairs have no weights" in page
    assert "data:image" not in page
    assert "with their results. Numbers are positions in the dataset." in page
    numbers = re.findall(r'title="(\d) · number (\d+)"><div class="blank">\2</div>', page)
    assert numbers
    assert all(int(number) // 5 == int(label) for label, number in numbers)


def test_the_gain_over_the_start_is_shown(tmp_path):
    folder = image_run(tmp_path, noise=0.9)
    path = folder / "evaluation.json"
    found = json.loads(path.read_text())
    gain = {"recall_at_1": -0.05, "interval": [-0.1, 0.01], "confidence": 0.95}
    path.write_text(json.dumps({**found, "start": {"recall_at_1": found["recall_at_1"] + 0.05}, "gain": gain}))
    log = folder / "events.jsonl"
    log.write_text('{"event": "evaluation", "step": 0, "recall_at_1": 0.25}\n' + log.read_text())
    page = reports.write(folder).read_text()
    assert re.search(r'class="gain worse">Recall@1 before training [\d.]+ % → after [\d.]+ %: -5.0 points \(95 %', page)
    assert "before training</dt>" in page
    assert "Best at step 40: 60.0\xa0% on the test split, before training 25.0\xa0%." in page


def test_the_curve_shows_the_metric_that_selects(tmp_path):
    """Recall@1 may fall while the checkpoints that MAP@R selects get better."""
    folder = image_run(tmp_path)
    about = json.loads((folder / "run.json").read_text())
    about["settings"] |= {"select_by": "map_at_r", "validation": 0.2}
    (folder / "run.json").write_text(json.dumps(about))
    values = [(0, 0.9, 0.5), (50, 0.8, 0.6)]
    found = [
        {"event": "evaluation", "step": step, "recall_at_1": first, "map_at_r": second}
        for step, first, second in values
    ]
    found.append({"event": "wise_ft", "step": 50, "share": 0.6, "recall_at_1": 0.85, "map_at_r": 0.62})
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    chart = reports.write(folder).read_text().split("MAP@R while learning</h3>")[1].split("</figure>")[0]
    assert "Best at step 50: 60.0\xa0% on the validation split" in chart
    assert "before training 50.0\xa0%. An average with the weights before training reached 62.0\xa0%" in chart


def test_a_report_without_training_says_so(tmp_path):
    folder = image_run(tmp_path)
    about = json.loads((folder / "run.json").read_text())
    about["settings"]["steps"] = 0
    (folder / "run.json").write_text(json.dumps(about))
    page = reports.write(folder).read_text()
    assert "without training, on " in page
    assert "trained with" not in page


def test_the_curve_is_scaled_to_its_values(tmp_path):
    folder = image_run(tmp_path)
    steps = [(0, 0.917), (50, 0.921), (100, 0.92)]
    lines = [json.dumps({"event": "evaluation", "step": step, "recall_at_1": value}) for step, value in steps]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    page = reports.write(folder).read_text()
    chart = page.split("Recall@1 while learning</h3>")[1].split("</figure>")[0]
    ticks = [float(tick) for tick in re.findall(r'class="tick end"[^>]*>([\d.]+)\xa0%', chart)]
    assert len(ticks) >= 3
    assert 90 < min(ticks) < max(ticks) < 94


def test_a_run_that_trains_has_a_report(tmp_path):
    folder = image_run(tmp_path)
    (folder / "evaluation.json").unlink()
    (folder / "vectors.safetensors").unlink()
    page = reports.write(folder).read_text()
    found = [attributes["id"] for tag, attributes in Elements(page).found if tag in ("section", "header")]
    assert found == ["headline", "learning", "settings"]
    assert "Step 40 of 40: Recall@1 <em>60.0\xa0%</em> at step 40" in page
    assert "not finished" in page


def test_a_report_survives_the_loss_of_its_images(tmp_path):
    folder = image_run(tmp_path, noise=0.9)
    first = reports.write(folder).read_text()
    (tmp_path / "photos").rename(tmp_path / "moved")
    with pytest.warns(
        UserWarning, match=r"the class names and thumbnails that the run has kept: .*photos does not exist; if the"
    ):
        kept = reports.write(folder).read_text()
    images = re.compile(r'data:image/webp[^"]*')
    assert images.findall(kept) == images.findall(first)
    assert re.findall(r'data-text="[^"]*"', kept) == re.findall(r'data-text="[^"]*"', first)
    assert "Images are those that the run has kept:" in kept
    # Other examples, such as those of a later run, do not get these names.
    (folder / "examples.zip").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="the report is written without images"):
        assert "data:image" not in reports.write(folder).read_text()
    assert reports.write(folder, tmp_path / "moved").read_text().count("data:image") == first.count("data:image")
    assert zipfile.is_zipfile(folder / "examples.zip")


def test_kept_examples_belong_to_one_run(tmp_path):
    kept = ShownExamples([3, 5], ["ant", "bee"], ["ant/1.png", "bee/1.png"], True, {(96, 1): b"webp"})
    write_kept(tmp_path, kept)
    assert read_kept(tmp_path, [3, 5]) == kept
    assert read_kept(tmp_path, [3, 6]) is None


def test_classes_are_named_on_the_map_and_listed_below(folder, page):
    names = [html.escape(name) for name in NASTY]
    listed = re.findall(r'class="class" data-class="(\d)"[^>]*>(.*?) <i>6</i></button>', page)
    assert sorted(name for _, name in listed) == sorted(names)
    written = re.findall(r"<text>([^<]*)</text></g>", page.split('class="names"')[1].split("</svg>")[0])
    assert written
    assert {name.rstrip("…") for name in written} <= {html.escape(name[:25]).rstrip("…") for name in NASTY} | {*names}


def test_mistakes_on_the_map_name_the_wrong_neighbour(folder, page):
    points = [attributes for _, attributes in Elements(page).found if attributes.get("class") == "point miss"]
    assert points
    by_row = {each["data-row"]: each for _, each in Elements(page).found if "data-row" in each}
    for point in points:
        assert point["data-near-text"] == f"nearest: {by_row[point['data-near']]['data-text']}"
        assert by_row[point["data-near"]]["data-class"] != point["data-class"]


def test_mistakes_are_shown_with_their_files(folder, page):
    assert "with their results. Point at an image to see its file." in page
    elements = [attributes for _, attributes in Elements(page).found]
    titles = [each["title"] for each in elements if each.get("class", "").startswith("cell ")]
    texts = [each["data-text"] for each in elements if "data-text" in each]
    for text in titles + texts:
        name, file = text.split(" · ")[:2]
        assert file.startswith(f"{name}/")
        assert (folder.parent / "photos" / file).is_file()


def test_a_perfect_run_has_no_mistakes(tmp_path):
    page = reports.write(image_run(tmp_path, noise=0.0)).read_text()
    assert page.count("There are none: the nearest neighbour of every query has its class.") == 2


def test_baselines_are_shown(tmp_path):
    folder = image_run(tmp_path)
    path = folder / "evaluation.json"
    path.write_text(path.read_text()[:-1] + ', "baselines": {"raw pixels": {"recall_at_1": 0.125}}}')
    page = reports.write(folder).read_text()
    assert "raw pixels" in page
    assert "12.5\xa0%" in page


@pytest.mark.parametrize("gain", [0.02, -0.02])
def test_the_number_of_the_higher_curve_is_above(tmp_path, gain):
    folder = image_run(tmp_path, noise=0.9)
    path = folder / "evaluation.json"
    start = json.loads(path.read_text())["recall_at_1"] - gain
    path.write_text(path.read_text()[:-1] + f', "start": {{"recall_at_1": {start}, "model": "untrained"}}}}')
    note = r'class="note middle {}" x="[\d.]+" y="([\d.]+)"'
    page = reports.write(folder).read_text().partition("<h3>Recall@K")[2]
    own, other = (float(re.search(note.format(kind), page)[1]) for kind in ("positive", "other"))
    assert (own < other) == (gain > 0)


def test_a_run_of_one_step_has_a_report(tmp_path):
    folder = image_run(tmp_path)
    (folder / "events.jsonl").write_text('{"event": "end", "step": 1, "seconds": 0.1}\n')
    page = reports.write(folder).read_text()
    assert "How it learned</h2><p>There is no curve: fewer than two steps were logged; train with a smaller" in page


def test_a_run_that_has_just_begun_has_no_curve_yet(tmp_path):
    folder = image_run(tmp_path)
    (folder / "evaluation.json").unlink()
    (folder / "events.jsonl").write_text('{"event": "evaluation", "step": 0, "recall_at_1": 0.5}\n')
    page = reports.write(folder).read_text()
    assert "How it learned</h2><p>There is no curve yet: fewer than two steps are logged.</p>" in page


def test_the_report_of_a_large_run_is_a_few_megabytes(tmp_path):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (2000, 32, 32, 3), dtype=torch.uint8, generator=draw)
    data = datasets.from_images(pixels, torch.arange(2000) // 10)
    folder = write_run(tmp_path / "run", data, "noise in memory")
    page = reports.write(folder, data)
    # Noise compresses worst.
    assert page.stat().st_size < 5.5e6
    assert page.read_text().count('class="point') == 1500


PROBE = """
<script>
  const answer = (name, value) => (document.body.dataset[name] = JSON.stringify(value));
  const point = document.querySelector(".point");
  const at = point.getBoundingClientRect();
  const move = (target, x, y) =>
    target.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
  move(point, at.left + 1, at.top + 1);
  answer("tip", [document.querySelector(".tip").hidden, document.querySelector(".tip p").textContent]);
  answer("mates", document.querySelectorAll(".point.mate").length);
  const missed = document.querySelector(".miss");
  move(missed, at.left + 1, at.top + 1);
  answer("near", [document.querySelector(".near").hidden, document.querySelector(".near p").textContent]);
  document.querySelector(".class").click();
  answer("pinned", [document.querySelector(".class").ariaPressed, document.querySelectorAll(".point.mate").length]);
  answer("clipped", getComputedStyle(svgOf(".map")).overflow);
  document.querySelector("button[data-zoom=in]").click();
  answer("zoomed", [svgOf(".map").getAttribute("viewBox"), svgOf(".map").classList.contains("at2")]);
  document.querySelector(".map input").click();
  answer("misses", svgOf(".map").classList.contains("misses"));
  const chart = document.querySelector("svg[data-readout]");
  const box = chart.getBoundingClientRect();
  move(chart, box.left + box.width / 2, box.top + 20);
  answer("readout", chart.parentElement.querySelector("output").textContent);
  answer("wide", document.documentElement.scrollWidth <= innerWidth);
  answer("colour", getComputedStyle(document.body).backgroundColor);
  function svgOf(place) { return document.querySelector(place + " svg"); }
</script>
"""


@needs_chromium
@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",), ("--window-size=390,800",)],
                         ids=["light", "dark", "phone"])  # fmt: skip
def test_the_page_works_in_a_browser(page, tmp_path, flags):
    path = tmp_path / "probe.html"
    path.write_text(page.replace("</body>", f"{PROBE}</body>"))
    visit = Visit(path, tmp_path / "profile", *flags)
    assert visit.console == []
    assert visit.requests == []
    for name in SECTIONS:
        assert f'id="{name}"' in visit.dom
    hidden, text = visit.value("tip")
    assert not hidden
    assert text.split(" · ")[0] in NASTY
    assert visit.value("mates") == 6
    hidden, text = visit.value("near")
    assert not hidden
    assert text.startswith("nearest: ")
    assert visit.value("pinned") == ["true", 6]
    assert visit.value("clipped") == "hidden"  # zoomed images must not cover the buttons
    box, shown = visit.value("zoomed")
    assert box.split()[2:] == ["540", "360"]
    assert shown
    assert visit.value("misses")
    assert re.fullmatch(r"step \d+: [\d.]+", visit.value("readout"))
    assert visit.value("wide"), "the page is wider than the window"
    dark = "preferredColorScheme" in "".join(flags)
    assert (sum(map(int, re.findall(r"\d+", visit.value("colour"))[:3])) < 200) == dark


@needs_chromium
def test_the_browser_test_detects_errors(page, tmp_path):
    path = tmp_path / "wrong.html"
    path.write_text(
        page.replace("</body>", '<script>nothing()</script><img src="http://outside.example/x.png"></body>')
    )
    visit = Visit(path, tmp_path / "profile")
    assert any("nothing is not defined" in line for line in visit.console)
    assert visit.requests == ["http://outside.example/x.png"]
