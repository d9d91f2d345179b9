"""The page in headless Chromium: it shows what is loaded, draws the load, chats, works offline."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from sglk.runtime.server import page as page_files

FOLDER = Path(page_files.__file__).parent / "page"
BROWSER = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, server: Any) -> Iterator[Page]:
    """The page, with everything it does wrong or fetches from elsewhere in `page.faults`."""
    opened = browser.new_page(viewport={"width": 1280, "height": 860})
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    opened.on(
        "request",
        lambda r: (
            None
            if r.url.startswith(server.url) or r.url.startswith("data:")
            else faults.append(r.url)
        ),
    )
    opened.goto(server.url)
    yield opened
    opened.close()
    assert faults == []


@needs_browser
def test_it_shows_what_is_loaded_and_draws_the_metrics(page: Page, server: Any) -> None:
    expect(page.locator("#model")).to_contain_text("test")
    expect(page.locator("#state")).to_have_attribute("data-state", "ready")
    expect(page.locator("#facts")).to_contain_text("32 running")
    expect(page.locator(".phase")).not_to_have_count(0)
    server.chat(max_tokens=60, ignore_eos=True)
    expect(page.locator("figure")).to_have_count(10)
    drawn = page.locator("figure", has_text="Tokens/s out").locator("canvas")
    expect(drawn).to_have_attribute("aria-label", re.compile(r"Tokens/s out: [1-9]"))
    ink = """canvas => {
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return data.filter((value, at) => at % 4 === 3 && value > 128).length;
    }"""
    expect(page.locator("html")).to_have_attribute("data-ticks", re.compile("^([3-9]|1[0-9])$"))
    assert drawn.evaluate(ink) > 20


@needs_browser
def test_the_chat_streams_keeps_the_conversation_and_clears(page: Page, server: Any) -> None:
    page.fill("#longest", "24")
    page.fill("#question", "hello")
    page.click("#send")
    answer = page.locator(".message.assistant")
    expect(answer.locator(".note")).to_contain_text("tokens")
    expected = server.chat("hello", max_tokens=24).json()["choices"][0]["message"]["content"]
    assert answer.locator(".text").text_content() == expected
    page.fill("#question", "again")
    page.press("#question", "Enter")
    expect(page.locator(".message.assistant .note").nth(1)).to_contain_text("tokens")
    assert page.locator(".message").count() == 4
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)


@needs_browser
def test_an_answer_can_be_stopped_and_its_pages_are_free(page: Page, server: Any) -> None:
    server.device.hold()
    page.fill("#question", "hello")
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Stop")
    page.click("#send")
    expect(page.locator(".message.assistant .note")).to_have_text("stopped")
    server.device.go()
    server.until(lambda: server.service.model.thread.num_live == 0)


@needs_browser
def test_refusals_are_shown_in_words(browser: Any, make_server: Any) -> None:
    server = make_server(keys=["a-good-key"])
    page = browser.new_page()
    page.goto(server.url)
    expect(page.locator("#model")).to_contain_text("test")
    page.fill("#question", "hello")
    page.click("#send")
    expect(page.locator(".message.failed .note")).to_contain_text("valid API key")
    page.fill("#key", "a-good-key")
    page.fill("#longest", "5")
    page.fill("#question", "hello")
    page.click("#send")
    expect(page.locator(".message.assistant .note").nth(1)).to_contain_text("5 tokens")
    page.close()


@needs_browser
def test_a_server_that_is_gone_is_said(browser: Any, make_server: Any) -> None:
    server = make_server()
    page = browser.new_page()
    page.goto(server.url)
    expect(page.locator("#state")).to_have_attribute("data-state", "ready")
    server.stop()
    expect(page.locator("#state")).to_have_text("no answer", timeout=15_000)
    page.close()


@needs_browser
def test_it_fits_a_narrow_screen(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) <= 390


def test_nothing_comes_from_elsewhere_and_every_file_is_served(server: Any) -> None:
    assert {name for _, name in page_files.FILES} == {file.name for file in FOLDER.iterdir()}
    for path, name in page_files.FILES:
        reply = server.http.get(path)
        assert reply.content == (FOLDER / name).read_bytes()
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert not re.search(r"https?://", reply.text)
