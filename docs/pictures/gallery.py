"""Draw the gallery: every method on two pictures of the bundled world, one sheet per family.

    python docs/pictures/gallery.py

It needs no network and no weights beyond those in the package, and takes a quarter of an hour or more on two cores.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from torch import Tensor

import vitreous as vt
from vitreous import viz as show
from vitreous.viz.canvas import SOFT_INK, line_height, stacked, wrap
from vitreous.viz.colormap import colour_bars, number, statement
from vitreous.world import Scene, render
from vitreous.world.dataset import to_images

HERE = Path(__file__).parent
SCENE, STUDIO = 34, 42
"""Seeds of the two scenes: one as the renderer draws it, one made to look like a photograph."""
SPELLINGS = {
    "consensus": "consensus(generic, plus(decompx))",
    "plus": "plus(decompx)",
    "skipplus": "skipplus(decompx)",
    "smooth": "smooth(saliency)",
    "logprob": "logprob(plus(decompx))",
    "var": "var@sharp(decompx)",
    "witness": "witness(decompx, grad_rollout)",
    "refine": "refine(generic)",
    "rise": "rise(masks=1000)",
}
"""What the combinators are put around, and fewer masks for the slowest method."""
TILE, ZOOM = 128, 1.3


def scene() -> Image.Image:
    """A scene as it is."""
    (picture,) = to_images(render(Scene.of(SCENE), 512).images)
    return picture


def studio() -> Image.Image:
    """A scene with what a camera adds: solid shading, a shadow, a ground out of focus, a lens that darkens, grain."""
    sample = render(Scene.of(STUDIO), 512)
    (picture,) = to_images(sample.images)
    body = _mask(sample.creature)
    sharp = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.2)), np.float64) / 255
    far = np.asarray(picture.filter(ImageFilter.GaussianBlur(7)), np.float64) / 255
    shadow = np.roll(_soft(body, 14), (22, 16), axis=(0, 1))
    height = 26 * _soft(body, 16) + 10 * _soft(body, 5)  # a creature bulges towards the camera
    down, horizontal = np.gradient(height)
    lit = (0.9 - 0.45 * horizontal - 0.6 * down) / np.sqrt(1 + horizontal**2 + down**2)
    y, x = (np.indices(body.shape) + 0.5) / body.shape[0] - 0.5
    edge = _soft(body, 1.2)[..., None]
    image = far * (1 - 0.55 * shadow)[..., None] * (1 - edge) + sharp * np.clip(lit, 0.35, 1.3)[..., None] * edge
    image *= (1.08 - 0.75 * (x**2 + y**2))[..., None] * np.array([1.05, 1.0, 0.92])
    dice = np.random.default_rng(STUDIO)
    image += 0.03 * _soft(dice.normal(size=image.shape), 0.7) + 0.015 * dice.normal(size=body.shape)[..., None]
    return Image.fromarray(np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8))


def _mask(creature: Tensor) -> np.ndarray:
    return creature[0].numpy().astype(np.float64)


def _soft(values: np.ndarray, sigma: float) -> np.ndarray:
    """A Gaussian blur over rows and columns; borders are continued."""
    reach = int(4 * sigma) + 1
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    for _ in range(2):
        pad = np.pad(values, [(reach, reach)] + [(0, 0)] * (values.ndim - 1), "edge")
        values = sum(share * pad[at : at + len(values)] for at, share in enumerate(bell / bell.sum())).swapaxes(0, 1)
    return values


def families() -> dict[str, list[str]]:
    """The specs to be shown, by family; the model is a transformer, and has no picture of methods for ReLUs."""
    together = {"bottleneck": "bottleneck and sampling", "sampling": "bottleneck and sampling"}
    result: dict[str, list[str]] = {}
    for info in vt.list_methods():
        if info.models != "ReLU" and info.factory.__module__.startswith("vitreous."):
            result.setdefault(together.get(info.family, info.family), []).append(SPELLINGS.get(info.name, info.name))
    return result


def cost(method: vt.Method, view: vt.VisionModel) -> str:
    """The price in words, with numbers where the method or the model has them."""
    text = method.info.cost_text.replace(" forwards of part of the tokens", " F of half length")
    text = text.replace("C forwards", f"{view.embed_dim} F")
    for word in ("masks", "samples"):
        if hasattr(method, word):
            text = text.replace(f"{word} forwards", f"{word} F").replace(word, str(getattr(method, word)))
    return text


@dataclass(frozen=True)
class Tile:
    """A finished picture, what is written around it, and the scale of its colours."""

    cell: show.Cell
    scale: show.Scale


def tiles(spec: str, model: vt.VisionModel, images: list[Image.Image]) -> list[Tile]:
    """Both pictures with the map of one method; the left one has its name, the right one its cost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vt.VitreousWarning)  # `constant` explains nothing, as it should
        explanation = vt.explain(model, images, spec)
    result = []
    for item, title in zip(explanation, (spec, cost(vt.get_method(spec), model)), strict=True):
        values = item.map.numpy()
        scale = show.Scale.of([values], signed=item.signed)
        note = [f"{number(values.min())} to {number(values.max())}"]
        note += [f"from {number(scale.low)}"] * bool(scale.floor) + [f"1 = {number(scale.limit)}"]
        side = round(TILE * ZOOM)
        picture = show.overlay(item.image.resize((side, side), Image.Resampling.LANCZOS), values, scale)
        result.append(Tile(show.Cell(picture, None, title, " · ".join(note)), scale))
    return result


def sheet(rows: Iterable[list[Tile]]) -> Image.Image:
    """Two methods side by side, four pictures a row; below, what the colours mean."""
    pairs = list(rows)
    lines = [[tile.cell for pair in pairs[at : at + 2] for tile in pair] for at in range(0, len(pairs), 2)]
    scales = [tile.scale for pair in pairs for tile in pair]
    page = show.sheet(lines, tile=TILE, zoom=ZOOM)
    side, size = round(TILE * ZOOM), round(12 * ZOOM)
    gap = side // 12
    legends = colour_bars(scales, True, side, size)
    legend = show.Sheet(page.width, legends[0].height)
    for index, item in enumerate(legends):
        legend.put(item, (gap + index * (item.width + gap), 0))
    words = wrap(statement(scales, 99, "each"), size, page.width - 2 * gap, 9)
    text = show.Sheet(page.width, len(words) * line_height(size))
    text.write((gap, 0), words, size, SOFT_INK)
    return small(stacked([page, legend, text], page.width, gap).image())


def small(picture: Image.Image) -> Image.Image:
    """A picture in 256 colours, which keeps files small; a quarter of them are those of the bars."""
    bar = [colour for name in ("sequential", "diverging") for colour in show.COLOURS[name][::8].flatten().tolist()]
    palette = Image.new("P", (1, 1))
    palette.putpalette(picture.quantize(192, Image.Quantize.MEDIANCUT, kmeans=1).getpalette()[: 3 * 192] + bar)
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def slug(family: str) -> str:
    return re.sub(r"\W+", "-", family.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(families()), help="one family and no others")
    only = parser.parse_args().only
    view, scenes = vt.load("world"), [scene(), studio()]
    predictions = [explanation.prediction for explanation in vt.explain(view, scenes, "constant")]
    notes = ("a scene as it is drawn", "another one, made to look like a photograph")
    heads = [
        show.Cell(picture, None, f"{item.label} (p = {item.probability:.3f})", note)
        for picture, item, note in zip(scenes, predictions, notes, strict=True)
    ]
    small(show.panel([heads], tile=2 * TILE, zoom=ZOOM)).save(HERE / "gallery.png", optimize=True)
    for family, specs in families().items():
        if only in (None, family):
            rows = (tiles(spec, view, scenes) for spec in specs)
            sheet(rows).save(HERE / f"gallery-{slug(family)}.png", optimize=True)
            print(family, len(specs))


if __name__ == "__main__":
    main()
