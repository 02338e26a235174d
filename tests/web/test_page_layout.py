"""The page itself in a real browser: addresses, keys, errors in words, every size, light and dark, contrast, names."""

from __future__ import annotations

from typing import Any

import pytest

from browser import PICTURE, visit
from web_server import Client

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

VIEWS = ("why", "maps", "layers", "heads", "owners")
UNREADABLE = """() => {
    const light = (colour) => {
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = colour.map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (text) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const behind = (node) => {
        const layers = [];
        for (let each = node; each; each = each.parentElement)
            layers.push(rgba(getComputedStyle(each).backgroundColor));
        const over = (under, [r, g, b, a]) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
        return layers.reduceRight(over, [0, 0, 0]);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
        const node = text.parentElement, style = getComputedStyle(node);
        const seen = node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
        if (!text.textContent.trim() || !seen) continue;
        if (node.closest(".unseen, .skip, :disabled, .stale, .ghost, .chip, .hint, option, svg, noscript")) continue;
        const back = behind(node), [r, g, b, a] = rgba(style.color);
        const ink = [r, g, b].map((c, i) => a * c + (1 - a) * back[i]);
        const [one, other] = [light(ink), light(back)].sort((x, y) => y - x);
        const contrast = (one + 0.05) / (other + 0.05), size = parseFloat(style.fontSize);
        if (contrast < 4.5 || size < 11) found.push([text.textContent.slice(0, 40), node.className, contrast, size]);
    }
    return found;
}"""
NAMELESS = """() => [...document.querySelectorAll("button, a, input, select, [role=img], [role=progressbar]")]
    .filter((each) => each.checkVisibility() && !(each.textContent.trim() || each.getAttribute("aria-label")
        || each.getAttribute("aria-labelledby") || each.labels?.length || each.querySelector("img[alt]:not([alt=''])")))
    .map((each) => each.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), pytest.param(820, "dark", marks=pytest.mark.slow), (1560, "dark")]
)
def test_every_view_fits_and_can_be_read(browser: Any, client: Client, width: int, scheme: str) -> None:
    """Nothing is wider than the screen, text has a contrast of 4.5, and whatever can be pressed or read has a name."""
    with visit(browser, client, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        page.open(picture=None)
        page.sees("h1", "What made it decide?")
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
        assert page.tab.evaluate(UNREADABLE) == []
        page.open(methods="skipplus(decompx);rollout", target="3")
        page.sees("h1", "What speaks for “")
        for place, model in enumerate(VIEWS, 1):
            page.tab.keyboard.press(str(place))
            page.expect(page(f"#tab-{model}")).to_have_attribute("aria-selected", "true")
            page.expect(page(f".view.{model}")).to_be_visible()
            page.expect(page(f".view.{model} [aria-busy=true]")).to_have_count(0)
            assert page.tab.evaluate("document.documentElement.scrollWidth") <= width, model
            assert page.tab.evaluate(UNREADABLE) == [], model
            assert page.tab.evaluate(NAMELESS) == [], model
        ink = page.tab.evaluate("getComputedStyle(document.body).color")
        assert (sum(int(word) for word in ink[4:-1].split(",")) > 400) == (scheme == "dark")


def test_an_address_is_the_whole_view(browser: Any, client: Client) -> None:
    state = {
        "view": "maps",
        "target": "7",
        "contrast": "12",
        "methods": "generic;gradcam",
        "chosen": "gradcam",
        "k": "31",
    }
    look = {"keep": "1", "fill": "mean", "opacity": "0.7", "clip": "90", "positive": "1", "patches": "1", "shared": "1"}
    with visit(browser, client) as page:
        page.open(**state, **look)
        page.tiles(2)
        before, title = page.hash, page("h1").inner_text()
        assert "rather than" in title
        page.expect(page(".tile.on .title")).to_have_text("gradcam")
        page.sees(".count", "31 of 256")
        for value in ("true", "mean"):
            assert page(f".segments button[data-value={value}][aria-pressed=true]").count() >= 1
        assert page(".look .slide output").all_inner_texts() == ["70 %", "90th"]
        page.tab.reload()
        page.tiles(2)
        assert (page.hash, page("h1").inner_text()) == (before, title)
        assert page.hash.count("&") == len(state) + len(look)  # what is meant anyway is not in the address


def test_back_and_forward(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="generic")
        page.tiles(1)
        first = page("h1").inner_text()
        page(".class .pick").nth(1).click()
        page.expect(page("h1")).not_to_have_text(first)
        second = page("h1").inner_text()
        page("#tab-heads").click()
        page.sees("h1", "Where does each head look?")
        page.tab.go_back()
        page.expect(page("h1")).to_have_text(second)
        page.tab.go_back()
        page.expect(page("h1")).to_have_text(first)
        page.expect(page("#tab-maps")).to_have_attribute("aria-selected", "true")
        page.tab.go_forward()
        page.expect(page("h1")).to_have_text(second)
        page(".topbar .brand").click()
        page.sees("h1", "What made it decide?")


def test_another_model(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(picture="scene-moved-4", view="maps", methods="generic")
        page.sees("h1", "stilted lumbo")
        page(".model select").select_option("world-shortcut")
        page.expect(page("h1")).not_to_contain_text("stilted lumbo")  # it follows the marker
        page.sees(".asked", "The model is wrong")
        assert "model=world-shortcut" in page.hash


def test_a_network_without_attention_has_neither_heads_nor_layers(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="heads")
        page.sees("h1", "Where does each head look?")
        page(".model select").select_option("world-cnn")
        page.sees("h1", "Why “")
        page.expect(page(".tab:visible")).to_have_text(["why", "maps", "who owns what"])
        page.expect(page("#tab-why")).to_have_attribute("aria-selected", "true")
        page("#tab-why").focus()
        for model in ("maps", "owners", "why"):
            page.tab.keyboard.press("ArrowRight")
            page.expect(page(f"#tab-{model}")).to_have_attribute("aria-selected", "true")
        page.tab.keyboard.press("4")
        assert "view=" not in page.hash  # nothing is there to be opened
        page(".model select").select_option("world")
        page.expect(page(".tab:visible")).to_have_count(len(VIEWS))


def test_keys(browser: Any, client: Client) -> None:
    with visit(browser, client) as page:
        page.open(view="maps", methods="generic")
        page.tiles(1)
        page.tab.keyboard.press("?")
        page.sees("dialog[open]", "one scale for all maps")
        page("dialog[open] input[type=checkbox]").uncheck()
        page.tab.keyboard.press("Escape")
        page.tab.keyboard.press("s")
        assert "shared" not in page.hash
        page.tab.keyboard.press("?")
        page("dialog[open] input[type=checkbox]").check()
        page.tab.keyboard.press("Escape")
        for key, entry in (
            ("s", "shared=1"),
            ("t", "patches=1"),
            ("p", "positive=1"),
            ("]", "opacity=0.6"),
            (".", "k=52"),
        ):
            page.tab.keyboard.press(key)
            assert entry in page.hash
        page.tab.keyboard.press("n")
        page.sees(".picture .note", client.fine("/api/start")["scenes"][4]["title"])
        page.tab.keyboard.press("b")
        assert f"picture={PICTURE}" in page.hash
        page("#tab-maps").focus()
        page.tab.keyboard.press("ArrowRight")
        page.expect(page("#tab-layers")).to_be_focused()
        assert page("#tab-layers").evaluate("each => getComputedStyle(each).outlineStyle") != "none"
        page.tab.keyboard.press("m")
        page.tab.keyboard.type("s1?")  # letters in a box are letters
        page.expect(page(".composer input")).to_have_value("s1?")


def test_errors_are_words_in_their_place(browser: Any, client: Client) -> None:
    with visit(browser, client, "404", "422", "503", "ERR_FAILED") as page:
        page.open(picture="p-0123456789abcdef")
        page.sees(".stage .problem", "it may have left to make room: upload it again")
        page.open(view="maps", methods="generic;nonsense(3);rollout(start=99)")
        page.tiles(1)
        page.sees(".tile:nth-child(2) .problem", "nonsense")
        page.sees(".tile:nth-child(3) .problem", "99")
        page.open(target="999", view="maps", methods="generic")
        page.sees(".tile .problem", "999")
        page.open(view="maps", methods="generic", opacity="much", clip="-3", k="many", fill="rainbow", layer="x")
        page.tiles(1)
        page.tab.route("**/api/**", lambda route: route.abort())
        page("#tab-heads").click()
        page.sees(".view .problem", "The server does not answer")
        page.tab.unroute("**/api/**")
        page("text=Try again").first.click()
        page.expect(page(".shelved").first).to_be_visible()


def test_the_page_is_closed_to_others(browser: Any, client: Client) -> None:
    """Neither a script in the page nor a picture from elsewhere is let in."""
    with visit(browser, client, "Content Security Policy") as page:
        page.open(picture=None)
        page.sees("h1", "What made it decide?")
        page.tab.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "document.title = 'caught'";
                const image = new Image();
                image.src = "http://x.invalid/z.png";
                document.body.append(script, image);
            }"""
        )
        page.tab.wait_for_timeout(200)
        assert page.tab.title() == "Vitreous"
        assert len(page.complaints) >= 2
        page.requests.remove("http://x.invalid/z.png")  # an attempt is seen, and it was the only one
