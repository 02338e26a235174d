"""Draw docs/pictures/why.png: the page of ``vitreous why`` for a scene of the bundled world, in a real browser.

python docs/pictures/why.py [--out FOLDER]; needs playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import vitreous as vt
from vitreous.world import Scene, render

SCENE = 35
SIZE = {"width": 900, "height": 900}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    pixels = (render(Scene.of(SCENE)).images[0] * 255).round().byte().permute(1, 2, 0).numpy()
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "bimble.png"
        Image.fromarray(pixels).save(photo)
        answer = vt.why(vt.load("world"), photo, command="vitreous why bimble.png --model world")
        page = answer.save(Path(folder) / "why.html")
        screenshot(page).convert("RGB").save(out / "why.png", optimize=True)


def screenshot(page: Path) -> Image.Image:
    """Return the whole page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport=SIZE)
        tab.goto(page.as_uri())
        picture = tab.screenshot(full_page=True)
        browser.close()
    return Image.open(io.BytesIO(picture))


if __name__ == "__main__":
    main()
