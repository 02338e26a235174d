"""A real browser in front of a real explorer: a tab that writes down every complaint and every request."""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from web_server import Client, class_probabilities, opened, world

__all__ = ["PICTURE", "Visit", "launch", "percent", "scene", "visit"]

PICTURE = "scene-pairs-5"
PATIENCE = 120_000  # milliseconds


class Visit:
    """A tab on the page of one image."""

    def __init__(self, browser: Any, client: Client, **options: Any) -> None:
        from playwright.sync_api import expect

        self.client, self.expect = client, expect
        look = {"viewport": {"width": 1560, "height": 980}, "reduced_motion": "reduce"}
        self.context = browser.new_context(**{**look, **options})
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text) if message.type != "log" else None)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.context.on("request", lambda request: self.requests.append(request.url))

    def open(self, **state: Any) -> Visit:
        """Open an address: the state of the page as it is written there."""
        pairs = "&".join(
            f"{name}={value}" for name, value in {"picture": PICTURE, **state}.items() if value is not None
        )
        self.tab.goto(f"http://127.0.0.1:{self.client.port}/#/image?{pairs}")
        return self

    def __call__(self, selector: str) -> Any:
        return self.tab.locator(selector)

    @property
    def hash(self) -> str:
        """The address, a moment later: while a slider moves it is not written at every step."""
        self.tab.wait_for_timeout(300)
        return str(self.tab.evaluate("decodeURIComponent(location.hash)"))

    def sees(self, selector: str, text: str) -> None:
        self.expect(self(selector).first).to_contain_text(text)

    def tiles(self, count: int) -> Any:
        """Wait until so many maps are drawn, and return them."""
        self.expect(self(".tile.there")).to_have_count(count)
        return self(".tile.there canvas")

    def settled(self) -> None:
        """Wait until the picture at the slider is the one that was asked for."""
        self.expect(self(".frame img")).not_to_have_class("stale")
        self.expect(self(".now")).not_to_have_class("now stale")

    def image(self, selector: str = ".frame img") -> Image.Image:
        """A picture of the page that came with an answer."""
        return opened(self(selector).get_attribute("src"))

    def probability_text(self, selector: str, index: int) -> str:
        """What the model itself says about a picture that is shown, as the page writes it."""
        return percent(float(class_probabilities(world(), self.image(selector))[index]))


@contextmanager
def launch() -> Iterator[Any]:
    """Start a browser, or skip where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no browser was visit")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=120_000)  # milliseconds: other tests may have the processors
    with playwright.sync_playwright() as browsers:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = browsers.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()


@contextmanager
def visit(browser: Any, client: Client, *expected: str, **options: Any) -> Iterator[Visit]:
    """Open a tab; at its end nothing was asked for elsewhere, and nothing complained about but what was expected."""
    tab = Visit(browser, client, **options)
    try:
        yield tab
        hosts = {urlsplit(url).netloc for url in tab.requests if not url.startswith(("data:", "blob:"))}
        assert hosts <= {f"127.0.0.1:{client.port}"}
        assert [text for text in tab.complaints if not any(words in text for words in expected)] == []
    finally:
        tab.context.close()


def scene(client: Client, picture: str = PICTURE) -> Image.Image:
    """What the model sees of a picture."""
    answer = client.get(f"/api/pictures/{picture}?model=world")
    return Image.open(io.BytesIO(answer.data)).convert("RGB")


def canvas_pixels(canvas: Any) -> np.ndarray[Any, Any]:
    """The pixels of a canvas."""
    data = canvas.evaluate("canvas => canvas.toDataURL('image/png')").partition(",")[2]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), np.float64)


def explained(client: Client, method: str | None = None, target: int | None = None, **options: Any) -> vt.Explanation:
    """The same map from the library."""
    explanation = vt.explain(world(), scene(client), method, target, **options)
    assert isinstance(explanation, vt.Explanation)
    return explanation


def percent(chance: float) -> str:
    """A probability as the page writes it."""
    share = 100 * chance
    if share >= 10 or share == 0:
        return f"{share:.0f} %"
    return f"{share:.1f} %" if share >= 1 else f"{share:.2f} %" if share >= 0.01 else "under 0.01 %"
