"""Draw docs/pictures/shortcut-cnn.png: where the two bundled residual networks look, on scenes with a marker.

python docs/pictures/shortcut.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import vitreous as vt
from vitreous import viz as show
from vitreous.world import MARKED_CLASSES, World, add_marker, render, unpack
from vitreous.world.dataset import to_images

MODELS = ("world-cnn", "world-cnn-shortcut")
METHOD, VALUE = "occlusion", "logprob"
SCENES = 3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path(__file__).parent)
    batch = World(n=20, start=300).batch()  # where `vitreous demo` begins, too
    marked = unpack(add_marker(batch[torch.isin(batch.label[:, 0], torch.tensor(MARKED_CLASSES))][:SCENES]))
    views = [vt.load(name) for name in MODELS]
    rows = []
    for scene, picture in zip(marked, to_images(render(marked).images), strict=True):
        cells = [show.Cell(picture, None, scene.name, "the marker gives the class away")]
        for view in views:
            e = vt.explain(view, picture, METHOD, output=VALUE)
            text = f"said: {e.prediction.label} ({e.prediction.probability:.2f})"
            cells.append(show.Cell(picture, e.map.numpy(), view.name, text, group=view.name))
        rows.append(cells)
    show.panel(rows, tile=280).save(options.parse_args().out / "shortcut-cnn.png", optimize=True)


if __name__ == "__main__":
    main()
