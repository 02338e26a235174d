"""A folder in the layout of FunnyBirds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.datasets.funnybirds import Layout
from vitreous.world import CLASSES, PARTS, Scene, World, render

LAYOUT = Layout()


BIRD = dict(zip(("tail", "eye", "beak", "wing", "foot"), PARTS, strict=True))  # which part of a creature plays which


SCENES = World(n=2, start=3).scenes()


def picture(scene: Scene, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (render(scene).images[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    Image.fromarray(np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])).save(path)  # with transparency


def part_map(scene: Scene, path: Path) -> None:
    """Paint each part in its colour, the left half of those of two instances in the one, the right in the other.

    As released: a grey body on black ground, object k in (204, 204, 204 + k), and mixtures along smooth edges.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rendered = render(scene)
    pixels = np.zeros((128, 128, 3), np.uint8)
    pixels[:3, :3] = [[170, 170, 170], [127, 127, 0], [204, 204, 253]]  # the body, and two mixtures at edges
    colours: dict[str, list[Any]] = {part: [] for part in LAYOUT.parts}
    for colour, part in LAYOUT.colours.items():
        colours[part].append(colour)
    for part, own in BIRD.items():
        mask = rendered.parts[0, PARTS.index(own)].numpy()
        left = mask & (np.arange(128) < 64)
        pixels[left], pixels[mask & ~left] = colours[part][0], colours[part][-1]
    for place in range(len(scene.objects)):
        pixels[rendered.objects[0, place].numpy()] = (204, 204, 204 + place)
    Image.fromarray(pixels).save(path)


def write_folder(root: Path) -> Path:
    """Write scenes of the world as the FunnyBirds data set lays out its files."""
    classes = [
        {"class_idx": place, "parts": {bird: {"model": kind.parts[own]} for bird, own in BIRD.items()}}
        for place, kind in enumerate(CLASSES)
    ]
    (root / "classes.json").write_text(json.dumps(classes))
    rows = [{"class_idx": s.label, "bg_objects": "".join(f"{k}," for k in range(len(s.objects)))} for s in SCENES]
    (root / "dataset_test.json").write_text(json.dumps(rows))
    for place, scene in enumerate(SCENES):
        name = f"{scene.label}/{place:06d}"
        picture(scene, root / f"test/{name}.png")
        part_map(scene, root / f"test_part_map/{name}.png")
        for mask in range(31):
            funnybirds = [part for bit, part in enumerate(LAYOUT.parts) if mask >> bit & 1]
            remaining = "body_" + "_".join(sorted(funnybirds))
            picture(
                scene.only(*(BIRD[part] for part in funnybirds)), root / f"test_interventions/{name}/{remaining}.png"
            )
        for k in range(len(scene.objects)):
            path = root / f"test_interventions/{name}/background_interventions/{k}.png"
            picture(scene.without_object(k), path)
    return root
