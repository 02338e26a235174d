"""The page is one file, well formed, and everything in it is escaped."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from vitreous.html import Section, figure, png_data_uri, report

EVIL = "<script>alert('x')</script> & \"quotes\""
VOID = {"meta", "img", "br", "hr"}


class Reader(HTMLParser):
    """Collects tags and text, and insists that every element is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 9, 3), dtype=np.uint8))


def decoded(uri: str) -> np.ndarray:
    head, body = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def page() -> str:
    sections = [
        Section(EVIL, "first\n\nsecond " + EVIL, [(picture(0), EVIL), (picture(1), "")]),
        Section(
            "Scores",
            "",
            [(picture(2), "three")],
            [["method", EVIL], ["rollout", "0.12"], ["ixg", "-3.4e-05"]],
        ),
    ]
    return report(EVIL, EVIL, sections, footer=EVIL)


def test_data_uri_is_the_image() -> None:
    np.testing.assert_array_equal(decoded(png_data_uri(picture(0))), np.asarray(picture(0)))
    for mode in ("L", "RGBA", "CMYK", "F"):
        assert decoded(png_data_uri(picture(0).convert(mode))).shape[:2] == (6, 9)


def test_report_contains_every_image_with_alt_text() -> None:
    images = Reader(page()).all("img")
    assert len(images) == 3
    for seed, image in enumerate(images):
        np.testing.assert_array_equal(decoded(image["src"] or ""), np.asarray(picture(seed)))
        assert image["alt"]
    assert [image["alt"] for image in images] == [EVIL, EVIL, "three"], "caption, else the heading"


def test_report_escapes_everything() -> None:
    text = page()
    read = Reader(text)
    assert "<script" not in text
    assert read.all("script") == []
    # title, h1, lead, link, heading, text, caption, table header, footer
    assert "".join(read.words).count(EVIL) == 9


def test_report_is_self_contained_and_modern() -> None:
    text = page()
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert read.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in read.all("meta")
    assert any(meta.get("name") == "viewport" for meta in read.all("meta"))
    assert "prefers-color-scheme: dark" in text
    assert read.all("link") == []
    assert not re.search(r"https?://|url\(|@import", text)
    targets = {section["id"] for section in read.all("section")}
    assert {(link["href"] or "").removeprefix("#") for link in read.all("a")} == targets


def test_report_table_and_paragraphs() -> None:
    read = Reader(page())
    assert len(read.all("tr")) == 3
    assert [cell.get("class") for cell in read.all("th")] == [None, "n"]
    assert [cell.get("class") for cell in read.all("td")] == [None, "n"] * 2
    assert len(read.all("p")) == 1 + 2


def test_report_with_little() -> None:
    read = Reader(report("t", "", [Section("only", "text", table=[["a", "b"], ["1"]])]))
    assert read.all("img") == read.all("nav") == read.all("footer") == []
    assert len(read.all("td")) == 2
    Reader(report("t", "", []))


@pytest.mark.parametrize("caption", [EVIL, ""])
def test_figure(caption: str) -> None:
    read = Reader(figure(picture(3), caption))
    (image,) = read.all("img")
    np.testing.assert_array_equal(decoded(image["src"] or ""), np.asarray(picture(3)))
    assert image["alt"] == (caption or "picture")
    assert read.all("script") == []
    assert "".join(read.words) == caption
