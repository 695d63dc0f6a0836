"""The whole report: complete, self-contained, safe, and right in a real browser."""

import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from browser import Visit, needs_chromium
from report_runs import picture_run, write_run
from tuplet import data as datasets
from tuplet import reports

SECTIONS = ["headline", "map", "learning", "retrieval", "worst", "typical", "confused", "weights", "settings"]
NASTY = ("<script>alert(1)</script>", '"quoted" & co', "a'b", "Ω ≠ ω", "{brace}", "x" * 80)


class Elements(HTMLParser):
    """The elements of a page with their attributes; fails where one is closed that is not open."""

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
    return picture_run(tmp_path_factory.mktemp("page"), NASTY, noise=0.9)


@pytest.fixture(scope="module")
def page(folder):
    path = reports.write(folder)
    assert path == folder / "report.html"
    assert [each.name for each in folder.iterdir() if each.name.endswith(".part")] == []
    return path.read_text()


def test_every_section_is_there_in_order(page):
    found = [attributes["id"] for tag, attributes in Elements(page).found if tag in ("section", "header")]
    assert found == SECTIONS


def test_nothing_is_asked_of_anyone(page):
    for tag, attributes in Elements(page).found:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, name, attributes[name][:80])
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|https?://", page)


def test_names_are_text_and_never_markup(page):
    scripts = [tag for tag, _ in Elements(page).found if tag == "script"]
    assert len(scripts) == 1
    assert "<script>alert" not in page


def test_a_name_that_is_no_text_is_shown_in_escapes(tmp_path):
    names = ("ant", os.fsdecode(b"\xe9l\xe9phant"))
    written = reports.write(picture_run(tmp_path, names)).read_text()
    assert r"\udce9l\udce9phant" in written


def test_every_example_is_on_the_map_with_its_picture(page):
    elements = Elements(page).found
    points = [attributes for _, attributes in elements if attributes.get("class", "").startswith("point")]
    assert len(points) == 36
    assert sum(tag == "image" for tag, _ in elements) == 36
    assert sorted({point["data-class"] for point in points}) == list("012345")


def test_the_same_run_gives_the_same_page(folder, page):
    assert reports.write(folder).read_text() == page


def test_vectors_without_pictures_have_a_report(tmp_path):
    labels = np.arange(40) // 5
    np.savez(tmp_path / "features.npz", features=np.random.default_rng(0).normal(size=(40, 4)), labels=labels)
    data = datasets.open(tmp_path / "features.npz")
    folder = write_run(tmp_path / "run", data, tmp_path / "features.npz", loss="proxy_anchor")
    page = reports.write(folder).read_text()
    assert [attributes["id"] for tag, attributes in Elements(page).found if tag in ("section", "header")] == SECTIONS
    assert "unseen examples find their own class first" in page
    assert "weighs no pairs of examples" in page
    assert "data:image" not in page
    assert "then its nearest. Numbers are places in the data." in page
    numbers = re.findall(r'title="(\d) · number (\d+)"><div class="blank">\2</div>', page)
    assert numbers
    assert all(int(number) // 5 == int(label) for label, number in numbers)


def test_whoever_sees_a_mistake_learns_in_which_file_it_is(folder, page):
    assert "then its nearest. Point at a picture to see its file." in page
    elements = [attributes for _, attributes in Elements(page).found]
    titles = [each["title"] for each in elements if each.get("class", "").startswith("cell ")]
    places = [each["data-says"] for each in elements if "data-says" in each]
    for says in titles + places:
        name, file = says.split(" · ")[:2]
        assert file.startswith(f"{name}/")
        assert (folder.parent / "photos" / file).is_file()


def test_a_perfect_run_says_that_nothing_is_wrong(tmp_path):
    page = reports.write(picture_run(tmp_path, noise=0.0)).read_text()
    assert page.count("There are none: every query finds its own class first.") == 2


def test_baselines_stand_beside_the_result(tmp_path):
    folder = picture_run(tmp_path)
    path = folder / "evaluation.json"
    path.write_text(path.read_text()[:-1] + ', "baselines": {"raw pixels": {"recall_at_1": 0.125}}}')
    page = reports.write(folder).read_text()
    assert "raw pixels" in page
    assert "12.5\xa0%" in page


def test_a_run_of_one_step_has_a_report(tmp_path):
    folder = picture_run(tmp_path)
    (folder / "events.jsonl").write_text('{"event": "end", "step": 1, "seconds": 0.1}\n')
    page = reports.write(folder).read_text()
    assert "How it learned</h2><p>There is no curve: fewer than two steps were logged; train with a smaller" in page


def test_a_large_run_stays_a_few_megabytes(tmp_path):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (2000, 32, 32, 3), dtype=torch.uint8, generator=draw)
    data = datasets.from_images(pixels, torch.arange(2000) // 10)
    folder = write_run(tmp_path / "run", data, "noise in memory")
    page = reports.write(folder, data)
    # Noise is what compresses worst.
    assert page.stat().st_size < 5e6
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
  answer("mates", document.querySelectorAll(".mate").length);
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
def test_a_browser_shows_it_without_complaint(page, tmp_path, flags):
    path = tmp_path / "probe.html"
    path.write_text(page.replace("</body>", f"{PROBE}</body>"))
    visit = Visit(path, tmp_path / "profile", *flags)
    assert visit.complaints == []
    assert visit.requests == []
    for name in SECTIONS:
        assert f'id="{name}"' in visit.dom
    hidden, says = visit.value("tip")
    assert not hidden
    assert says.split(" · ")[0] in NASTY
    assert visit.value("mates") == 6
    box, shown = visit.value("zoomed")
    assert box.split()[2:] == ["540", "360"]
    assert shown
    assert visit.value("misses")
    assert re.fullmatch(r"step \d+: [\d.]+", visit.value("readout"))
    assert visit.value("wide"), "the page is wider than the window"
    dark = "preferredColorScheme" in "".join(flags)
    assert (sum(map(int, re.findall(r"\d+", visit.value("colour"))[:3])) < 200) == dark


@needs_chromium
def test_the_browser_test_notices_what_is_wrong(page, tmp_path):
    path = tmp_path / "wrong.html"
    path.write_text(
        page.replace("</body>", '<script>nothing()</script><img src="http://outside.example/x.png"></body>')
    )
    visit = Visit(path, tmp_path / "profile")
    assert any("nothing is not defined" in line for line in visit.complaints)
    assert visit.requests == ["http://outside.example/x.png"]
