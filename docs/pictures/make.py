"""Draw the scene of the README and explain it with a trained model.

    python docs/pictures/make.py --checkpoint deit_tiny_patch16_224.safetensors

The scene is drawn here, so that it can be shown; the model is timm's DeiT-Tiny with its published weights.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from PIL import Image, ImageDraw

import vitreous as vt

HERE = Path(__file__).parent
METHODS = ["rollout", "generic", "attcam", "gradcam", "decompx", "skipplus(decompx)"]
SIZE = 896


def scene() -> Image.Image:
    """A clock on a wall and a traffic light before it."""
    wall = Image.linear_gradient("L").resize((SIZE, SIZE))
    image = Image.composite(Image.new("RGB", wall.size, (150, 160, 176)), Image.new("RGB", wall.size, "#d9dfe6"), wall)
    pen = ImageDraw.Draw(image)
    _clock(pen, 270, 330, 220)
    _traffic_light(pen, 690, 470, 78)
    return image.resize((448, 448), Image.Resampling.LANCZOS)


def _clock(pen: ImageDraw.ImageDraw, x: int, y: int, radius: int) -> None:
    def disc(size: float, colour: str) -> None:
        pen.ellipse((x - size, y - size, x + size, y + size), fill=colour)

    def hand(turn: float, start: float, stop: float, width: int) -> None:
        across, down = math.sin(2 * math.pi * turn), -math.cos(2 * math.pi * turn)
        ends = (x + start * across, y + start * down, x + stop * across, y + stop * down)
        pen.line(ends, fill="#141414", width=width)

    disc(radius, "#46301f")
    disc(0.87 * radius, "#faf8f0")
    for minute in range(60):
        hour = minute % 5 == 0
        hand(minute / 60, (0.72 if hour else 0.78) * radius, 0.82 * radius, 12 if hour else 4)
    hand(0.145, 0, 0.45 * radius, 16)
    hand(0.83, 0, 0.68 * radius, 11)
    disc(0.06 * radius, "#141414")


def _traffic_light(pen: ImageDraw.ImageDraw, x: int, y: int, radius: int) -> None:
    pen.rectangle((x - 16, y, x + 16, SIZE), fill="#2b2e33")
    pen.rounded_rectangle((x - 120, y - 340, x + 120, y + 340), 46, fill="#1c1f22")
    for lamp, colour in enumerate(("#e8291c", "#6b5312", "#154a2a")):
        centre = y + (lamp - 1) * 216
        pen.ellipse((x - radius - 12, centre - radius - 12, x + radius + 12, centre + radius + 12), fill="#0b0c0d")
        pen.ellipse((x - radius, centre - radius, x + radius, centre + radius), fill=colour)
    pen.ellipse((x - 50, y - 270, x - 14, y - 234), fill="#ff8f7d")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="weights of deit_tiny_patch16_224; from the hub if not given")
    options = {k: v for k, v in vars(parser.parse_args()).items() if v}
    view = vt.load("timm/deit_tiny_patch16_224", **options)
    scene().save(HERE / "scene.png")
    found = vt.compare(view, HERE / "scene.png", METHODS, target=["wall clock", "traffic light"])
    found.save(HERE / "compare.png", overwrite=True, tile=168)
    for each in (found[1], found[len(METHODS) + 1]):
        print(each.caption, each.prediction)


if __name__ == "__main__":
    main()
