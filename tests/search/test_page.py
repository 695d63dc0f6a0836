"""The page in a browser: mouse, keyboard, phone, hostile labels and many labels."""

import io
import json
import time

import numpy as np
import pytest
import torch
from PIL import Image

from browser import CHROMIUM
from search.bad_uploads import saved
from search.server_process import draw_image, server_in_thread
from tuplet import search
from tuplet.search.ingest import add_images
from tuplet.search.listing import list_images

pytest.importorskip("uvicorn", reason="serving needs uvicorn")
pytest.importorskip("fastapi", reason="serving needs fastapi")


FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="driving a browser needs playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(folder):
    with server_in_thread(folder) as address:
        yield address


@pytest.fixture
def page(browser, address):
    """Open the page; fail on errors in it and on requests to other hosts."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    page, trouble = context.new_page(), []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((address, "blob:", "data:")) else trouble.append(r.url))
    page.goto(address)
    page.wait_for_selector(".hit img")
    yield page
    context.close()
    assert not trouble


@pytest.fixture
def visit(browser):
    """Return a function that opens the page at an address and waits for its first items."""
    contexts = []

    def opened(address, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.trouble = []
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.goto(address)
        page.wait_for_selector(".hit")
        return page

    yield opened
    for context in contexts:
        context.close()


def until(page, condition):
    """Wait for a condition. The page's security policy forbids playwright's own `wait_for_function`."""
    until = time.monotonic() + 60
    while not page.evaluate(condition):
        assert time.monotonic() < until, f"never came true: {condition}"
        page.wait_for_timeout(25)


def results(page):
    page.wait_for_selector(".drop.full")
    until(page, "!document.body.classList.contains('busy')")
    return [hit.get_attribute("title") for hit in page.query_selector_all(".hit")]


def upload(label, number):
    return {"name": "photo.png", "mimeType": "image/png", "buffer": saved(draw_image(label, number), "PNG")}


def test_page_choose_click_filter_and_go_back(page):
    assert "30 images, 3 classes" in page.inner_text("#about")
    page.set_input_files("#file", upload("green", 4))
    assert results(page)[0] == "green/4.png"
    assert page.inner_text(".hit .score").startswith(("1.000", "0.999"))
    page.click(".hit[title='green/5.png']")
    page.wait_for_url("**/?item=green%2F5.png")
    found = results(page)
    assert "green/5.png" not in found
    assert len(found) == 24
    page.fill("#label", "blue")
    until(page, "[...document.querySelectorAll('.hit')].every(h => h.title.startsWith('blue/'))")
    assert len(results(page)) == 10
    page.keyboard.press("Escape")
    until(page, "document.querySelectorAll('.hit').length === 24")
    page.click(".chip >> nth=0")
    until(page, "document.querySelector('.chip').getAttribute('aria-pressed') === 'true'")
    page.keyboard.press("Escape")
    page.go_back()
    until(page, "document.querySelector('.hit').title === 'green/4.png'")


def test_page_starts_with_one_of_each_class(page):
    first = [hit.get_attribute("title").partition("/")[0] for hit in page.query_selector_all(".hit")]
    assert len(first) == 24
    for place in range(0, 24, 3):
        assert set(first[place : place + 3]) == {"red", "green", "blue"}
    assert page.is_hidden("#where"), "there are no metadata to filter by"


def test_page_offers_classes_like_the_typed_one(page):
    page.fill("#label", "gren")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hint:not([hidden])")
    assert "There is no class “gren”. Did you mean" in page.inner_text("#hint")
    page.click("#hint .chip >> nth=0")
    until(page, "[...document.querySelectorAll('.hit')].every(h => h.title.startsWith('green/'))")
    assert page.is_hidden("#hint")
    page.fill("#label", "qqq")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hint:not([hidden])")
    assert page.inner_text("#hint") == "There is no class “qqq”."


def test_page_keeps_the_filters_in_the_address(page):
    page.click(".hit[title^='red/']")
    results(page)
    page.fill("#label", "blue")
    page.select_option("#count", "12")
    page.check("#distinct")
    until(page, "location.search.includes('distinct=1')")
    assert "label=blue" in page.url
    assert "results=12" in page.url
    page.reload()
    assert {id.partition("/")[0] for id in results(page)} == {"blue"}
    assert (page.input_value("#label"), page.input_value("#count")) == ("blue", "12")
    assert page.is_checked("#distinct")


def test_page_explains_scores_and_shows_the_name_of_an_upload(page):
    assert page.is_hidden("#scores")
    page.set_input_files("#file", upload("green", 4))
    results(page)
    assert page.inner_text("#scores") == "Scores: cosine similarity: 1 is the same, about 0 unrelated."
    assert page.inner_text("#from") == "Searching with photo.png"


@pytest.mark.parametrize(("metric", "is_cosine"), [("cosine", True), ("dot", False), ("euclidean", False)])
def test_page_finds_near_duplicates_by_cosines_only(visit, tmp_path, metric, is_cosine):
    """Dot products of vectors of any length have no threshold that fits, and no bar from 0 to 1."""
    index = search.create(tmp_path / "i", dim=2, metric=metric)
    index.add(8 * torch.eye(2), ["east", "north"])
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        assert page.is_visible("#distinct") == is_cosine
        page.click(".hit >> nth=0")
        results(page)
        assert bool(page.query_selector(".score u")) == is_cosine


def test_page_shows_an_upload_that_the_browser_cannot(visit, address):
    page = visit(address)
    image = {"name": "scan.tif", "mimeType": "image/tiff", "buffer": saved(draw_image("green", 4), "TIFF")}
    page.set_input_files("#file", image)
    assert results(page)[0] == "green/4.png"
    until(page, "document.getElementById('query').src.startsWith('data:image/webp')")
    until(page, "!document.getElementById('query').hidden && document.getElementById('query').naturalWidth === 120")
    assert page.inner_text("#from") == "Searching with scan.tif"


def test_page_shows_the_files_of_results(visit, tmp_path, folder):
    for label, number in (("red", 0), ("blue", 1)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        draw_image(label, number).resize((600, 450)).save(tmp_path / "photos" / label / f"{number}.tif")
    index = search.create(tmp_path / "i", embedder=search.open(folder).embedder)
    add_images(index, list_images(tmp_path / "photos"))
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        page.hover(".hit[title='red/0.tif']")
        page.click("li:has(.hit[title='red/0.tif']) .view")
        until(page, "document.getElementById('large').naturalWidth === 600")
        assert page.inner_text("#large-path") == str(tmp_path / "photos/red/0.tif")
        assert page.get_attribute("#large-open", "href") == "/api/original?id=red%2F0.tif"
        page.keyboard.press("Escape")
        until(page, "!document.getElementById('larger').open")
        # A file that is gone leaves its thumbnail.
        (tmp_path / "photos/blue/1.tif").unlink()
        page.focus(".hit[title='blue/1.tif']")
        page.keyboard.press("v")
        until(page, "document.getElementById('large').naturalWidth === 256")
        page.click("#large-search")
        assert results(page) == ["red/0.tif"]
        assert not page.trouble


def test_page_drop_and_paste(page):
    give = """([kind, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "photo.png", {type: "image/png"}));
        const event = kind === "drop" ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true});
        document.body.dispatchEvent(event);
    }"""
    for kind, label, number in (("drop", "red", 3), ("paste", "blue", 7)):
        page.evaluate(give, [kind, list(saved(draw_image(label, number), "PNG"))])
        until(page, f"document.querySelector('.hit').title === '{label}/{number}.png'")


def test_page_with_the_keyboard(page):
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    chosen = page.evaluate("document.activeElement.title")
    assert chosen
    page.keyboard.press("Enter")
    assert chosen not in results(page)
    assert chosen.partition("/")[0] in page.inner_text("#from")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "label"


def test_page_shows_errors(visit, address):
    page = visit(address)
    page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": b"not an image"})
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem").startswith("“photo.png” is not an image that can be read here.")
    # Neither earlier results nor a broken image are shown.
    until(page, "document.getElementById('query').hidden")
    assert (page.inner_text("#title"), page.query_selector_all(".hit, .chip")) == ("No results", [])
    scan = saved(Image.new("RGB", (2000, 1800)), "TIFF")  # the browser cannot shrink it
    page.set_input_files("#file", {"name": "scan.tif", "mimeType": "image/tiff", "buffer": scan})
    until(page, "document.getElementById('problem').textContent.startsWith('“scan.tif” is too large: at most 10 MB')")
    page.goto(f"{address}/?item=absent")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == "The index has no id 'absent'; use the ids of search results."
    until(page, "document.getElementById('query').hidden")
    assert page.inner_text("#title") == "No results"


def test_page_on_a_phone_and_in_the_dark(visit, address, tmp_path):
    backgrounds = []
    for scheme in ("light", "dark"):
        page = visit(address, viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
        page.set_input_files("#file", upload("red", 1))
        results(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        small = "e => { const b = e.getBoundingClientRect(); return b.width > 0 && (b.width < 24 || b.height < 24) }"
        assert not page.eval_on_selector_all("button", f"list => list.filter({small}).map(e => e.outerHTML)")
        shot = Image.open(io.BytesIO(page.screenshot()))
        backgrounds.append(np.asarray(shot.convert("L"))[-1, 2])
    assert backgrounds[0] > 200
    assert backgrounds[1] < 60


def test_page_opens_with_its_token(browser, folder):
    with server_in_thread(folder, token="open sesame") as address:
        context = browser.new_context()
        page = context.new_page()
        assert page.goto(address).status == 401
        page.fill("input", "wrong")
        page.click("button")
        assert page.inner_text("p") == "This server needs its token."
        page.fill("input", "open sesame")
        page.click("button")
        page.wait_for_selector(".hit img")
        assert "sesame" not in page.url
        context.close()


def test_page_takes_ids_and_labels_as_text(visit, tmp_path):
    hostile = "<img src=x onerror=\"document.title = 'hacked'\">&amp;'\"%2e%2e/\u202e"
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), [hostile, "javascript:alert(1)"], [{"label": hostile}, {"label": "</script><b>bold"}])
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        until(page, "document.querySelectorAll('.hit .none').length === 2")  # vectors have no thumbnails
        # Without a model the button to choose an image is disabled.
        assert page.is_disabled("#drop")
        assert page.inner_text("#drop") == "This index has no model. Search from one of its items."
        assert page.get_attribute("#drop", "aria-label") is None
        assert {hit.get_attribute("title") for hit in page.query_selector_all(".hit")} == {
            hostile, "javascript:alert(1)",
        }  # fmt: skip
        page.locator(".hit", has_text="bold").click()
        page.wait_for_selector(".drop.full")
        assert results(page) == [hostile]
        assert page.inner_text(".hit .label") == hostile.replace("_", " ")
        page.reload()
        assert results(page) == [hostile]
        assert page.title() != "hacked"
        assert not page.query_selector_all("#results b:not(.score b), .hit .label *")
        assert not page.trouble


def test_page_shows_no_broken_image_of_an_item_without_thumbnail(visit, tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["east", "north"], thumbnails=[b"", saved(draw_image("red", 1), "WEBP")])
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        for id, is_shown in (("east", False), ("north", True)):
            page.locator("li", has=page.locator(f".hit[title='{id}']")).locator(".view").click(force=True)
            until(page, f"document.querySelector('#large').checkVisibility() === {json.dumps(is_shown)}")
            assert page.inner_text("#large-path") == id
            page.click("#large-close")


def test_page_shows_ids_as_they_are_where_items_have_no_labels(visit, tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.ones(1, 2), ids=["1.my_photos/bee_1.jpg"], metadata=[{"price": 3}])
    with server_in_thread(tmp_path / "i") as address:
        assert visit(address).inner_text(".hit .label") == "1.my_photos/bee_1.jpg"


def test_page_shows_labels_of_any_json(visit, tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    labels = [{"toString": 1, "valueOf": None}, ["a", {"toString": "x"}], 7, {"__proto__": 1, "length": -1}, 1.5]
    index.add(torch.ones(5, 2), range(5), [{"label": label, "toString": label} for label in labels])
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        shown = {hit.inner_text() for hit in page.query_selector_all(".hit .label")}
        assert shown == {json.dumps(label, separators=(",", ":")).replace("__", " ") for label in labels}
        page.locator(".hit[title='0']").click()
        assert set(results(page)) == {"1", "2", "3", "4"}
        assert page.inner_text("#from b") == '{"toString":1,"valueOf":null}'
        assert {chip.get_attribute("title") for chip in page.query_selector_all(".chip")} == {"7", "1.5"}
        assert page.is_hidden("#problem")
        assert not page.trouble


def test_page_filters_its_first_items_by_metadata(visit, tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    places = ["Paris", "Paris, France", "Rome"]
    about = [{"label": "x", "camera": i % 3, "place": places[i // 4]} for i in range(12)]
    index.add(torch.eye(2).repeat(6, 1), range(12), about)
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        for typed, ids in {
            "camera=2, ": {"2", "5", "8", "11"},
            "place=Paris, France, camera=2": {"5"},
            "camera=[1, 2], place=Rome": {"8", "10", "11"},
            "camera=7": set(),
        }.items():
            page.fill("#where", typed)
            page.keyboard.press("Enter")
            until(page, f"document.querySelectorAll('.hit').length === {len(ids)}")
            assert {hit.get_attribute("title") for hit in page.query_selector_all(".hit")} == ids
        assert page.inner_text("#title") == "0 results"
        for typed, problem in {
            "camera": "“camera” is no filter; write a name and a value, such as camera=3.",
            "camera=1, camera=2": "“camera” is given twice; write its values as a list, such as camera=[3, 4].",
        }.items():
            page.fill("#where", typed)
            page.keyboard.press("Enter")
            until(page, f"document.querySelector('#problem').textContent === {json.dumps(problem)}")
            assert page.is_visible("#problem")


def test_page_suggests_a_few_of_many_classes(visit, tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    labels = [{"label": f"{number:04d}.Blue_beetle_{number}"} for number in range(3000)]
    index.add(torch.randn(3000, 2, generator=torch.Generator().manual_seed(0)), range(3000), labels)
    suggested = "[...document.querySelectorAll('#labels option')].map(option => option.value)"
    with server_in_thread(tmp_path / "i") as address:
        page = visit(address)
        assert "3,000 classes" in page.inner_text("#about")
        assert page.evaluate(suggested) == [f"{number:04d}.Blue_beetle_{number}" for number in range(50)]
        for typed in ("blue beetle 123", "BEETLE_123"):
            page.fill("#label", typed)
            assert page.evaluate(suggested) == [f"{n:04d}.Blue_beetle_{n}" for n in (123, *range(1230, 1240))]
        page.fill("#label", "1234.Blue_beetle_1234")
        until(page, "document.querySelectorAll('.hit').length === 1")
        assert page.query_selector(".hit").get_attribute("title") == "1234"
        page.keyboard.press("Escape")
        page.focus("#count")
        page.focus("#label")
        assert len(page.evaluate(suggested)) == 50
