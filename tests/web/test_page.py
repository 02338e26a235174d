"""The page of one image in a real browser: pick, predict, look at maps, switch and contrast classes, compose."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser import PICTURE, canvas_pixels, explained, percent, scene, visit
from vitreous import viz as show
from web_server import Client, class_probabilities, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def ranked(client: Client) -> list[tuple[int, str, float]]:
    """Classes by what the model gives them: index, name, probability."""
    value = class_probabilities(world(), scene(client))
    order = value.argsort(descending=True).tolist()
    return [(entry, world().label(entry), float(value[entry])) for entry in order]


def test_a_scene_is_picked_and_predicted(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.tab.goto(f"http://127.0.0.1:{client.port}/")
        page.sees("h1", "What made it decide?")
        assert page(".scene").count() >= 12
        page.tab.locator(f".scene[data-picture={PICTURE}]").focus()
        page.tab.keyboard.press("Enter")
        best = ranked(client)
        page.sees("h1", f"Why “{best[0][1]}”?")
        rows = page(".class").all_inner_texts()
        assert [row.split("\n")[:2] for row in rows] == [[name, percent(p)] for _, name, p in best[: len(rows)]]
        assert page.hash == f"#/image?picture={PICTURE}"


def test_a_photograph_is_taken_by_every_way(browser: Any, client: Client) -> None:
    photo = Image.effect_noise((90, 70), 80).convert("RGB")
    buffer = io.BytesIO()
    photo.save(buffer, format="PNG")
    data = buffer.getvalue()
    give = """([kind, bytes]) => {
        const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(bytes)], "given.png", { type: "image/png" }));
        const how = { bubbles: true, cancelable: true };
        const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: files, ...how })
            : new DragEvent(kind, { dataTransfer: files, ...how });
        document.body.dispatchEvent(event);
    }"""
    with visit(browser, client, "415") as page:
        page.tab.goto(f"http://127.0.0.1:{client.port}/")
        page("input[type=file]").set_input_files({"name": "mine.png", "mimeType": "image/png", "buffer": data})
        page.sees(".picture .note", "mine.png")
        page.sees("h1", "Why “")
        address = page.hash
        assert address.startswith("#/image?picture=p-")
        page.open()
        page.sees(".picture .note", "two creatures")
        for way in ("drop", "paste"):
            page.open()
            page.sees("h1", "slit-eyed")
            page.tab.evaluate(give, [way, list(data)])
            page.sees(".picture .note", "given.png")
            assert page.hash == address
        page("input[type=file]").set_input_files({"name": "no.png", "mimeType": "image/png", "buffer": b"nothing"})
        page.sees(".picture .problem", "not a picture that can be read")
        assert page.hash == address  # what was there stays


def test_maps_are_the_library_s_own(browser: Any, client: Client) -> None:
    """Three methods side by side, on their own scales: every pixel as in ``Explanation.overlay``, to a level or two."""
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick;generic;saliency")
        canvases = page.tiles(3)
        assert page(".tile .title").all_inner_texts() == ["quick", "generic", "saliency"]
        for place, method in enumerate((None, "generic", "saliency")):
            e = explained(client, method)
            pixels = canvas_pixels(canvases.nth(place))
            apart = np.abs(pixels - np.asarray(e.overlay(size=pixels.shape[0]), np.float64))
            assert apart.max() <= 2
            assert apart.mean() < 0.01
            strongest = page(".tile .legend span:last-child").nth(place).inner_text()
            assert float(strongest.lstrip("+")) == pytest.approx(e.scale.limit, rel=0.01)


def test_the_look_is_the_library_s_too(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick", opacity="0.8", clip="95", positive="1", patches="1")
        pixels = canvas_pixels(page.tiles(1).first)
        e = explained(client)
        values = np.maximum(e.map.numpy(), 0)
        under = show.resized(e.image, pixels.shape[0])
        wanted = show.overlay(under, values, show.Scale.of([values], 95.0, False), 0.8, mode="nearest")
        assert np.abs(pixels - np.asarray(wanted, np.float64)).max() <= 2


def test_one_scale_for_all(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="generic;gradcam")
        page.tiles(2)
        limits = page(".tile .legend span:last-child")
        assert len(set(limits.all_inner_texts())) == 2
        page.tab.keyboard.press("s")
        page.expect(page(".maps .note").last).to_contain_text("One scale")
        both = [explained(client, name).map.numpy() for name in ("generic", "gradcam")]
        limit = show.Scale.of(both, 99.0, True).limit
        assert [float(text.lstrip("+")) for text in limits.all_inner_texts()] == pytest.approx([limit] * 2, rel=0.01)


def test_a_patch_is_read_in_every_map(browser: Any, client: Client) -> None:
    """By pointing, and by arrow keys."""
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick;generic")
        page.tiles(2)
        maps = [explained(client).map.numpy(), explained(client, "generic").map.numpy()]

        def read() -> list[tuple[float, int]]:
            texts = [text.replace("−", "-").split() for text in page(".tile .chip").all_inner_texts()]
            return [(float(text[0]), int(text[1].rstrip("stndrh"))) for text in texts]

        def wanted(row: int, column: int) -> list[tuple[Any, int]]:
            values = [(map_[row, column], int((map_ > map_[row, column]).sum()) + 1) for map_ in maps]
            return [(pytest.approx(float(value), rel=0.006), place) for value, place in values]

        box = page(".tile .map").first.bounding_box()
        page.tab.mouse.move(box["x"] + box["width"] * 3.5 / 16, box["y"] + box["height"] * 9.5 / 16)
        assert read() == wanted(9, 3)
        page(".tile .map").nth(1).focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            page.tab.keyboard.press(key)
        assert read() == wanted(10, 5)
        page.sees("#said", "row 11, column 6")
        page.tab.keyboard.press("Escape")
        page.expect(page(".tile .chip").first).to_be_hidden()


def test_another_class_and_two_against_each_other(browser: Any, client: Client) -> None:
    (first, name, _), (second, other, _), (third, rival, _), *_ = ranked(client)
    with visit(browser, client) as page:
        page.open(view="maps", methods="quick")
        page.tiles(1)
        page(f".class[data-index='{second}'] .pick").click()
        page.sees("h1", f"Why “{other}”?")
        page.sees(".differs", f"The model says “{name}”")
        pair = page.tiles(2)  # beside the prediction
        for place, target in enumerate((second, first)):
            pixels = canvas_pixels(pair.nth(place))
            assert np.abs(pixels - np.asarray(explained(client, None, target).overlay(size=512), float)).max() <= 2
        page(f".class[data-index='{third}'] .pick").click(modifiers=["Shift"])
        page.sees("h1", f"Why “{other}” rather than “{rival}”?")
        assert f"target={second}&contrast={third}" in page.hash
        wanted = explained(client, None, second, contrast=third).overlay(size=512)
        pixels = canvas_pixels(page.tiles(1).first)
        assert np.abs(pixels - np.asarray(wanted, float)).max() <= 2
        page(f".class[data-index='{third}'] .versus").click()  # the same without a mouse and Shift
        page.expect(page("h1").first).to_have_text(f"Why “{other}”?")
        page(".differs button").click()
        page.expect(page("h1").first).to_have_text(f"Why “{name}”?")


def test_any_class_is_found(browser: Any, client: Client) -> None:
    index, name, _ = ranked(client)[-1]
    with visit(browser, client) as page:
        page.open(view="maps", methods="generic")
        page.tiles(1)
        page.tab.keyboard.press("c")
        page.tab.keyboard.type(name)
        page.sees(".asked .options", name)
        page.tab.keyboard.press("Enter")
        page.sees("h1", f"Why “{name}”?")
        assert f"target={index}" in page.hash
        page.sees(f".class[data-index='{index}']", name)


def test_methods_are_composed(browser: Any, client: Client) -> None:
    """Completion by keyboard, the cost before it runs, and an error under the very character."""
    with visit(browser, client) as page:
        page.open(view="maps", methods="generic")
        page.tiles(1)
        page.tab.keyboard.press("m")
        page.tab.keyboard.type("smooth(gradie")
        page.sees(".composer .options", "gradient")
        page.tab.keyboard.press("Tab")
        box = page(".composer input")
        page.expect(box).to_have_value("smooth(gradient")
        page.tab.keyboard.type(", samples=3)")
        page.sees(".composer .note", "3 F + 3 B")
        page.tab.keyboard.press("Enter")
        page.tiles(2)
        assert "methods=generic;smooth(gradient, samples=3)" in page.hash
        text = "consensus(generic, smoth(rollout))"
        box.fill(text)
        page.sees(".composer .wrong", "smoth")
        page.expect(page(".composer .caret")).to_have_text(f"{' ' * text.index('smoth')}▲")
        page.expect(page(".composer button")).to_be_disabled()


def test_methods_are_listed_with_their_cost(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="generic")
        page.tiles(1)
        page(".how .link").click()
        every = page(".method").count()
        page.tab.keyboard.type("perturbation")
        page.expect(page(".method")).not_to_have_count(every)
        page.tab.keyboard.press("Control+A")
        page.tab.keyboard.type("rollout grad")
        row = page(".method[data-name=grad_rollout]")
        page.expect(row).to_contain_text("1 F + 1 B")
        row.click()
        page.expect(row).to_have_attribute("aria-pressed", "true")
        page.expect(page(".method[data-name=generic]")).to_have_count(0)
        page.tab.keyboard.press("Escape")
        page.tiles(2)
        refused = next(entry for entry in client.fine("/api/start")["methods"] if entry.get("refused"))
        page(".how .link").click()
        page.expect(page(f".method[data-name={refused['name']}]")).to_be_disabled()
