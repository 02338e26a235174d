"""The test of a map, live in a real browser: the slider, the curves, an own mask, the verdict, files, a way to stop."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as Tree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import PICTURE, explained, percent, scene, visit
from web_server import Client, class_probabilities, until, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

LONG = "rise(masks=8000)"


@pytest.fixture(scope="module")
def target(client: Client) -> int:
    return int(class_probabilities(world(), scene(client)).argmax())


def strongest(client: Client, count: int) -> np.ndarray[Any, Any]:
    """Which patches of the quick map are the strongest."""
    values = explained(client).map.numpy().ravel()
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-values, kind="stable")[:count]] = True
    return mask.reshape(16, 16)


def touched(client: Client, picture: Image.Image) -> np.ndarray[Any, Any]:
    """Which patches of a picture are not as they were."""
    apart = np.abs(np.asarray(picture.convert("RGB"), int) - np.asarray(scene(client), int)).sum(axis=-1)
    return apart.reshape(16, 8, 16, 8).any(axis=(1, 3))


def test_the_slider(browser: Any, client: Client, target: int) -> None:
    """What is said as it moves is what the model says about exactly the picture that is shown."""
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick", k="0")
        page.tiles(1)
        page.settled()
        slider, now = page(".try input[type=range]"), page(".now .big")
        text = now.inner_text()
        assert text == percent(float(class_probabilities(world(), scene(client))[target]))
        slider.focus()
        for _ in range(3):
            page.tab.keyboard.press("ArrowRight")
        page.sees(".count", "3 of 256")
        page.settled()
        assert now.inner_text() == page.probability_text(".frame img", target) != text
        assert touched(client, page.image()).sum() <= 3
        slider.fill("40")
        page.sees(".count", "40 of 256")
        page.settled()
        assert now.inner_text() == page.probability_text(".frame img", target) != text
        assert not (touched(client, page.image()) & ~strongest(client, 40)).any()
        order = class_probabilities(world(), page.image()).argsort(descending=True)[:5].tolist()
        assert page(".hear .bar b").all_inner_texts() == [world().label(entry) for entry in order]
        page.tab.keyboard.press("k")
        page.expect(page(".try .segments button[data-value=true]")).to_have_attribute("aria-pressed", "true")
        page.settled()
        assert now.inner_text() == page.probability_text(".frame img", target)
        assert not (touched(client, page.image()) & strongest(client, 40)).any()
        assert "k=40&keep=1" in page.hash
        page(".segments button[data-value=black]").click()
        page.settled()
        gone = np.asarray(page.image().convert("RGB")).reshape(16, 8, 16, 8, 3).max(axis=(1, 3, 4)) == 0
        assert (gone == ~strongest(client, 40)).all()


def test_the_curves(browser: Any, client: Client, target: int) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick", k="64")
        page.expect(page(".curve polyline")).to_have_count(4)
        assert page(".curve polyline").evaluate_all("all => all.map(each => each.getAttribute('class'))") == [
            *("chance", "chance", "deletion", "insertion")
        ]
        page.settled()
        marker, slider = page(".curve .marker").bounding_box(), page(".try input[type=range]").bounding_box()
        assert marker["x"] == pytest.approx(
            slider["x"] + 8.5 + (slider["width"] - 17) / 4, abs=1.5
        )  # a quarter is gone
        states = page(".strip .state")
        page.expect(states).to_have_count(6)
        states.nth(2).click()
        page.expect(states.nth(2)).to_have_attribute("aria-current", "true")
        page.settled()
        assert page(".now .big").inner_text() == page.probability_text(".frame img", target)
        page.sees(".hear .note", "at random")


def test_an_own_mask(browser: Any, client: Client, target: int) -> None:
    """With the mouse, then with the keyboard; beside as many of the map's own."""
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick")
        page.tiles(1)
        page("text=draw your own").click()
        page.sees(".try .versus", "Paint the patches")
        box = page(".masking").bounding_box()
        cell = box["width"] / 16
        page.tab.mouse.move(box["x"] + 2.5 * cell, box["y"] + 9.5 * cell)
        page.tab.mouse.down()
        page.tab.mouse.move(box["x"] + 5.5 * cell, box["y"] + 9.5 * cell, steps=12)
        page.tab.mouse.up()
        page.sees(".count", "4 of 256")
        page.tab.keyboard.press("Shift+ArrowDown")
        page.tab.keyboard.press("ArrowLeft")
        page.tab.keyboard.press(" ")
        page.sees(".count", "6 of 256")
        page.settled()
        mine = np.zeros((16, 16), bool)
        mine[9, 2:6] = mine[10, 4:6] = True
        assert not (touched(client, page.image()) & ~mine).any()
        page.expect(page(".try .versus .card b").last).not_to_have_text("…")
        for place in range(2):
            card = f".try .versus .card:nth-child({place + 1})"
            page.expect(page(f"{card} b")).to_have_text(page.probability_text(f"{card} img", target))
        other = touched(client, page.image(".try .versus .card:nth-child(2) img"))
        assert not (other & ~strongest(client, 6)).any()
        shared = int((mine & strongest(client, 6)).sum())
        page.sees(".try .versus", f"{shared} of 6 patches are the same")
        address = page.hash
        page.tab.reload()
        page.sees(".count", "6 of 256")
        assert page.hash == address


def test_why_is_the_first_thing_and_live(browser: Any, client: Client, target: int) -> None:
    order = class_probabilities(world(), scene(client)).argsort(descending=True).tolist()
    labels = [world().label(entry) for entry in order if entry != target]
    with visit(browser, client) as page:
        page.open()
        page.sees(".question .lead", "The map's strongest fifth is")
        page.sees(".trusted .findings", "Without its strongest fifth")
        page.sees(".card.tried:nth-child(2)", "other places of the same size and shape")
        page.sees(".why .said", "Needed: without them less than half is left")
        page.sees(".why", f"Why not “{labels[0]}”?")
        page.sees(".why", "Who owns which patch?")
        page.sees(".again pre", "vitreous why")
        cards = page(".card.tried")
        for count in (51, 20):
            page(".try input[type=range]").fill(str(count))
            page.sees(".why .said", f"strongest {count} of 256")
            page.expect(page(".card.tried .stale")).to_have_count(0)
            for place in (1, 2):
                picture = f".card.tried:nth-child({place + 1}) img"
                assert cards.nth(place).locator(".big").inner_text() == page.probability_text(picture, target)
        cards.nth(2).click()
        page.expect(cards.nth(2)).to_have_attribute("aria-pressed", "true")
        page.settled()
        assert page(".frame img").get_attribute("src") == cards.nth(2).locator("img").get_attribute("src")
        page(".why .chips button").nth(1).click()
        page.sees(".why", f"Why not “{labels[1]}”?")
        assert f"contrast={order[2]}" in page.hash


def test_the_verdict_in_words(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="rollout")
        page.tiles(1)
        page("text=Check this map").click()
        page.sees(".trust .findings", "other places of the same size and shape")
        page.sees(".trust .verdict", ".")


def test_files_of_the_screen(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick;generic")
        page.tiles(2)
        page("text=save").click()
        page.sees(".codes", "vt.load('world')")
        page.sees(".codes", "vitreous compare")

        def saved(form: str) -> bytes:
            with page.tab.expect_download() as download:
                page(f".format[data-format={form}]").click()
            page.sees(".sheet[open] [role=status]", f".{form} is in your downloads")
            return Path(download.value.path()).read_bytes()

        maps = np.load(io.BytesIO(saved("npy")))
        for map_, method in zip(maps, (None, "generic"), strict=True):
            np.testing.assert_allclose(map_, explained(client, method).map.numpy(), rtol=1e-3, atol=1e-5)
        assert Image.open(io.BytesIO(saved("png"))).size > (300, 300)
        assert Tree.fromstring(saved("svg").decode()).tag.endswith("svg")
        html = saved("html").decode()
        assert not re.search(r"""(src|href)=["']?https?:""", html)
        page.tab.keyboard.press("Escape")
        page.tab.keyboard.press("3")
        page.expect(page(".shelved")).to_have_count(8)
        page.tab.keyboard.press("w")
        layers = np.load(io.BytesIO(saved("npy")))
        wanted = explained(client, "plus(decompx)").extras["layers"].numpy()
        np.testing.assert_allclose(layers, wanted, rtol=1e-3, atol=1e-5)
        assert Image.open(io.BytesIO(saved("png"))).width > 1000
        assert "data:image/png" in saved("html").decode()


def test_what_takes_long_stops_when_told(browser: Any, client: Client) -> None:
    """By its own button, by a key, and by looking elsewhere; the server stops too."""
    with visit(browser, client) as page:
        page.open(view="maps", methods=f"generic;{LONG}", chosen="generic")
        page.tiles(1)
        tile = page(".tile").nth(1)
        page.expect(tile.locator("[role=progressbar]")).to_have_attribute("aria-valuenow", re.compile("[0-9]+"))
        tile.locator("text=cancel").click()
        page.expect(tile).to_contain_text("Cancelled")
        until(lambda: client.explorer.long.num_jobs == 0)
        tile.locator("text=Run it").click()
        until(lambda: client.explorer.long.num_jobs > 0)
        page.expect(page(".busy")).to_contain_text("on")
        page.tab.keyboard.press("Escape")
        page.expect(tile).to_contain_text("Cancelled")
        until(lambda: client.explorer.long.num_jobs == 0)
        tile.locator("text=Run it").click()
        until(lambda: client.explorer.long.num_jobs > 0)
        page(".chosen li").nth(1).locator("button").last.click()  # the method is removed
        page.expect(page(".tile.there")).to_have_count(1)
        until(lambda: client.explorer.long.num_jobs == 0)
        assert client.fine("/api/predict", {"model": "world", "picture": PICTURE})["top"]


def test_layers_heads_and_owners(browser: Any, client: Client, target: int) -> None:
    with visit(browser, client) as page:
        page.open(view="layers")
        page.expect(page(".shelved")).to_have_count(world().depth)
        page.sees(".test .note", "decompx from layer 4")
        page(".shelved").nth(6).click()
        page.sees(".inside h2", "From layer 6 on")
        page.settled()
        assert page(".now .big").inner_text() == page.probability_text(".frame img", target)
        page.tab.keyboard.press("4")
        page.sees(".inside h2", f"Layer {world().depth - 1}, head 0")
        page.expect(page(".shelved")).to_have_count(world().num_heads)
        page.tab.keyboard.press("Tab")
        page(".heads input[type=range]").fill("2")
        page.sees(".inside h2", "Layer 2, head 0")
        page(".shelved").first.focus()
        page.tab.keyboard.press("ArrowRight")
        page.sees(".inside h2", "Layer 2, head 1")
        page.tab.keyboard.press("5")
        page.expect(page("ul.owners li[data-place]")).to_have_count(3)
        page.expect(page(".owners canvas")).to_have_attribute("data-state", "owners")
        shares = [float(text.rstrip(" %")) for text in page("ul.owners .chance").all_inner_texts()]
        assert sum(shares) == pytest.approx(100, abs=1.6)
        page("ul.owners .chips button").first.click()
        page.expect(page("ul.owners li[data-place]")).to_have_count(4)
        assert "compareClasses=" in page.hash
