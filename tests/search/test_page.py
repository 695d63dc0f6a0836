"""The page in a browser: with the mouse, the keyboard, a phone, and with hostile and many labels."""

import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from search.bad_uploads import saved
from search.served import photograph, server
from tuplet import search

pytest.importorskip("uvicorn", reason="serving needs uvicorn")
pytest.importorskip("fastapi", reason="serving needs fastapi")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="driving a browser needs playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The page, with whatever goes wrong in it collected: errors, and requests to anywhere else."""
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


def until(page, condition):
    """Wait for a condition. The page's policy forbids the driver's own way, which compiles text inside the page."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never came true: {condition}")


def results(page):
    page.wait_for_selector(".drop.full")
    until(page, "!document.body.classList.contains('busy')")
    return [hit.get_attribute("title") for hit in page.query_selector_all(".hit")]


def upload(label, number):
    return {"name": "photo.png", "mimeType": "image/png", "buffer": saved(photograph(label, number), "PNG")}


def test_page_choose_click_filter_and_go_back(page):
    assert "30 photographs, 3 classes" in page.inner_text("#about")
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


def test_page_drop_and_paste(page):
    give = """([kind, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "photo.png", {type: "image/png"}));
        const event = kind === "drop" ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true});
        document.body.dispatchEvent(event);
    }"""
    for kind, label, number in (("drop", "red", 3), ("paste", "blue", 7)):
        page.evaluate(give, [kind, list(saved(photograph(label, number), "PNG"))])
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


def test_page_says_what_is_wrong(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(".hit")
    page.set_input_files("#file", {"name": "photo.png", "mimeType": "image/png", "buffer": b"no photograph"})
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == "The body is no photograph; send JPEG, PNG, WebP or the like."
    # Neither results of another search nor a broken picture stand beside it.
    until(page, "document.getElementById('query').hidden")
    assert (page.inner_text("#title"), page.query_selector_all(".hit, .chip")) == ("No results", [])
    page.goto(f"{address}/?item=absent")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == "The index holds no 'absent'; ids are those of search results."
    until(page, "document.getElementById('query').hidden")
    assert page.inner_text("#title") == "No results"
    context.close()


def test_page_on_a_phone_and_in_the_dark(browser, address, tmp_path):
    backgrounds = []
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(".hit img")
        page.set_input_files("#file", upload("red", 1))
        results(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        small = "e => { const b = e.getBoundingClientRect(); return b.width > 0 && (b.width < 24 || b.height < 24) }"
        assert not page.eval_on_selector_all("button", f"list => list.filter({small}).map(e => e.outerHTML)")
        shot = Image.open(io.BytesIO(page.screenshot()))
        backgrounds.append(np.asarray(shot.convert("L"))[-1, 2])
        context.close()
    assert backgrounds[0] > 200
    assert backgrounds[1] < 60


def test_page_opens_with_its_token(browser, folder):
    with server(folder, token="open sesame") as (address, _):
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


def test_page_takes_ids_and_labels_as_text(browser, tmp_path):
    hostile = "<img src=x onerror=\"document.title = 'hacked'\">&amp;'\"%2e%2e/\u202e"
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), [hostile, "javascript:alert(1)"], [{"label": hostile}, {"label": "</script><b>bold"}])
    with server(tmp_path / "i") as (address, _):
        context = browser.new_context()
        page, trouble = context.new_page(), []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(address)
        page.wait_for_selector(".hit")
        until(page, "document.querySelectorAll('.hit .none').length === 2")  # vectors have no pictures
        # Nor a model: there is no button for photographs that would do nothing.
        assert page.is_disabled("#drop")
        assert page.inner_text("#drop") == "This index holds vectors and no model: search from its items."
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
        assert not trouble
        context.close()


def test_page_suggests_a_few_of_many_classes(browser, tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    labels = [{"label": f"{number:04d}.Blue_beetle_{number}"} for number in range(3000)]
    index.add(torch.randn(3000, 2, generator=torch.Generator().manual_seed(0)), range(3000), labels)
    suggested = "[...document.querySelectorAll('#labels option')].map(option => option.value)"
    with server(tmp_path / "i") as (address, _):
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(".hit")
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
        context.close()
