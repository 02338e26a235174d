"""The demonstration: a few pictures, explained with nothing but what is in the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from vitreous import show
from vitreous.api import compare, load
from vitreous.errors import VitreousError
from vitreous.models import View

__all__ = ["METHODS", "write"]

METHODS = ("rollout", "generic", "attcam", "gradcam", "ixg", "decompx", "skipplus(decompx)", "integrated_gradients")
_SIZE = 128


def write(out: str | Path, told: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Explain the sample pictures; write one panel each and ``report.html`` into ``out``, and return the files."""
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VitreousError(f"could not make the folder {out}: {error.strerror or error}") from error
    view = model()
    files, sections = [], []
    for name, draw in {"ladybird": _ladybird, "fish": _fish, "owl": _owl}.items():
        told(f"explaining the {name}")
        picture = draw()
        files.append(out / f"{name}.png")
        picture.save(files[-1])
        panel = compare(view, files[-1], METHODS).panel(tile=192, columns=5)
        files.append(out / f"{name}-panel.png")
        panel.save(files[-1])
        sections.append(show.Section(name.capitalize(), "", [(panel, f"{name}: {', '.join(METHODS)}")]))
    lead = (
        f"Eight methods on {view.name}, {view.depth} blocks. This model is freshly initialised: it has learnt nothing, "
        "so these maps show that the machinery works and not what a trained model sees."
    )
    files.append(out / "report.html")
    files[-1].write_text(show.report("Vitreous: a demonstration", lead, sections), encoding="utf-8")
    return files


def model() -> View:
    """Return a small, freshly initialised ViT, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small: dict[str, Any] = {
            "img_size": _SIZE,
            "patch_size": 8,
            "depth": 4,
            "embed_dim": 96,
            "num_heads": 3,
            "num_classes": 10,
        }
        return load("timm/vit_tiny_patch16_224", pretrained=False, **small)


def _canvas(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> Image.Image:
    """A soft vertical gradient, drawn large so that shrinking smooths every edge."""
    ramp = Image.linear_gradient("L").resize((4 * _SIZE, 4 * _SIZE))
    return Image.composite(Image.new("RGB", ramp.size, bottom), Image.new("RGB", ramp.size, top), ramp)


def _ladybird() -> Image.Image:
    image = _canvas((214, 236, 190), (106, 168, 79))
    pen = ImageDraw.Draw(image)
    pen.ellipse((190, 90, 330, 210), fill=(30, 30, 34))
    pen.ellipse((110, 140, 410, 430), fill=(214, 40, 40))
    pen.line((260, 140, 260, 430), fill=(30, 30, 34), width=10)
    for x, y in ((185, 220), (335, 220), (170, 320), (350, 320), (215, 390), (305, 390)):
        pen.ellipse((x - 26, y - 26, x + 26, y + 26), fill=(30, 30, 34))
    for x in (225, 295):
        pen.ellipse((x - 10, 120, x + 10, 140), fill="white")
    return image.resize((_SIZE, _SIZE), Image.Resampling.LANCZOS)


def _fish() -> Image.Image:
    image = _canvas((170, 222, 242), (28, 98, 150))
    pen = ImageDraw.Draw(image)
    pen.polygon(((360, 256), (470, 170), (470, 342)), fill=(240, 140, 30))
    pen.ellipse((80, 160, 400, 350), fill=(250, 170, 50))
    for x in (190, 260, 330):
        pen.arc((x - 120, 170, x, 340), -70, 70, fill="white", width=14)
    pen.ellipse((125, 215, 165, 255), fill="white")
    pen.ellipse((135, 225, 155, 245), fill="black")
    for i in range(5):
        x, y, r = 60 + 14 * i, 120 - 24 * i, 8 + 2 * i
        pen.ellipse((x - r, y - r, x + r, y + r), outline="white", width=4)
    return image.resize((_SIZE, _SIZE), Image.Resampling.LANCZOS)


def _owl() -> Image.Image:
    image = _canvas((20, 24, 60), (70, 60, 110))
    pen = ImageDraw.Draw(image)
    for i in range(24):  # stars, at fixed places
        x, y = int(512 * math.modf(i * 0.618)[0]), int(300 * math.modf(i * 0.414)[0])
        pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=(250, 246, 210))
    pen.polygon(((150, 170), (180, 90), (230, 140)), fill=(120, 80, 50))
    pen.polygon(((362, 170), (332, 90), (282, 140)), fill=(120, 80, 50))
    pen.ellipse((130, 120, 382, 450), fill=(140, 96, 60))
    pen.ellipse((190, 270, 322, 440), fill=(206, 172, 128))
    for x in (205, 307):
        pen.ellipse((x - 58, 160, x + 58, 276), fill=(250, 240, 214))
        pen.ellipse((x - 26, 192, x + 26, 244), fill=(24, 20, 20))
    pen.polygon(((240, 250), (272, 250), (256, 296)), fill=(240, 170, 40))
    pen.rectangle((90, 450, 430, 476), fill=(80, 54, 36))
    return image.resize((_SIZE, _SIZE), Image.Resampling.LANCZOS)
