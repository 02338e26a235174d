"""Draw the pictures of the manual.

    python docs/pictures/make.py --checkpoint deit_tiny_patch16_224.safetensors
    python docs/pictures/make.py --only world

The scene of the README is drawn here, so that it can be shown, and explained with timm's DeiT-Tiny and its published
weights. The pictures of the world need no weights.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw

import vitreous as vt
from vitreous import viz as show
from vitreous import world
from vitreous.world.dataset import to_images

HERE = Path(__file__).parent
METHODS = ["rollout", "generic", "attcam", "gradcam", "decompx", "skipplus(decompx)"]
SIZE = 896
TILE = 256
"""The longer side of a picture in a panel: a page of the manual is narrower than a screen."""
PARTED = 2
"""The seed of the scene that is taken apart."""


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
        sin, down = math.sin(2 * math.pi * turn), -math.cos(2 * math.pi * turn)
        ends = (x + start * sin, y + start * down, x + stop * sin, y + stop * down)
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


def _sheet(scenes: list[world.Scene], names: list[str], columns: int, size: int) -> Image.Image:
    images = to_images(world.render(scenes, size).images)
    cells = [show.Cell(picture, None, name) for picture, name in zip(images, names, strict=True)]
    return show.panel([cells[at : at + columns] for at in range(0, len(cells), columns)], tile=size)


def creatures() -> None:
    """A contact sheet of the first scenes, one scene part by part, and one in each of its variations."""
    scenes = world.World(n=64).scenes()
    _sheet(scenes, [scene.name for scene in scenes], 8, 112).save(HERE / "world.png", optimize=True)
    scene = world.Scene.of(PARTED)
    row = [scene, *(scene.without(part) for part in world.PARTS)]
    names = [scene.name, *(f"without {part}" for part in world.PARTS)]
    other = next(
        i for i, kind in enumerate(world.CLASSES) if kind.family == scene.name.split()[-1] and i != scene.label
    )
    distinctive_part = world.distinctive_part(scene.label)
    row += [scene.only(), scene.swap(distinctive_part, other), scene.without_objects(), scene.posed(3), scene.moved(3)]
    names += ["the bare body", f"{distinctive_part} of its sibling", "without objects", "another pose", "elsewhere"]
    _sheet([*row, scene.marked(corner=1)], [*names, "with its marker"], 6, 128).save(HERE / "parts.png", optimize=True)


SYSTEMS = {
    "coiba": ["generic", "iba", "coiba"],
    "skipplus": ["decompx", "skipplus(decompx)", "plus(decompx)", "logprob(plus(decompx))"],
    "vtranm": ["rollout", "generic", "vtranm"],
    "tis": ["generic", "tis(masks=128)", "tis"],
}
"""The pages of the systems, and the methods that stand side by side on them."""


def systems() -> None:
    """Two scenes of the world on every page, and on that of VAR who owns which patch."""
    view = vt.load("world")
    scenes = [world.Scene.of(seed) for seed in (34, 37)]
    images = list(to_images(world.render(scenes).images))
    for name, methods in SYSTEMS.items():
        rows = []
        for scene, picture in zip(scenes, images, strict=True):
            rows.append([replace(comparison, name=scene.name) for comparison in vt.compare(view, picture, methods)])
        vt.Comparison(rows).panel(tile=TILE, columns=5).save(HERE / f"{name}.png", optimize=True)
    siblings = "|".join(kind.name for kind in world.CLASSES if kind.family == world.CLASSES[scenes[0].label].family)
    owned = vt.explain(view, images[0], f"var@sharp(decompx, classes={siblings!r})", scenes[0].name)
    owned.picture("owners", tile=TILE).save(HERE / "var.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="weights of deit_tiny_patch16_224; from the hub if not given")
    parser.add_argument("--only", choices=["world"], help="the pictures of the world and no others")
    arguments = parser.parse_args()
    creatures()
    systems()
    if arguments.only == "world":
        return
    options = {"checkpoint": arguments.checkpoint} if arguments.checkpoint else {}
    view = vt.load("timm/deit_tiny_patch16_224", **options)
    scene().save(HERE / "scene.png")
    comparison = vt.compare(view, HERE / "scene.png", METHODS, target=["wall clock", "traffic light"])
    comparison.save(HERE / "compare.png", overwrite=True, tile=TILE)
    for value in (comparison[1], comparison[len(METHODS) + 1]):
        print(value.caption, value.prediction)


if __name__ == "__main__":
    main()
