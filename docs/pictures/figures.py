"""Draw the pictures of the page about figures: ``python docs/pictures/figures.py``. Takes minutes; needs no weights."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitreous as vt
from vitreous.metrics import RankedRemoval
from vitreous.results.table_plots import states_strip
from vitreous.viz import plots as figures

HERE = Path(__file__).parent
METHODS = ["generic", "ixg"]
WIDE = 900  # pixels


def save_figure(name: str, figure: Any) -> None:
    figures.save(figure, HERE / f"figure-{name}", overwrite=True)


def small(name: str, figure: Any) -> None:
    """A picture of pictures, small enough for a page."""
    buffer = io.BytesIO()
    figures.encoded(figure, "it.png")(buffer)
    picture = Image.open(buffer).convert("RGB")
    picture = picture.resize((WIDE, round(picture.height * WIDE / picture.width)), Image.Resampling.LANCZOS)
    picture.quantize(128).save(HERE / f"figure-{name}", optimize=True)


def tables(view: vt.VisionModel, pictures: list[Any]) -> None:
    metric = "insdel(steps=8)"
    table = vt.evaluate(view, pictures[:12], METHODS, metric)
    save_figure("curves.svg", table.plot("curves"))
    save_figure("bars.svg", table.plot("bars"))
    table = vt.evaluate(view, pictures, METHODS, "deletion(steps=3)")
    save_figure("bins.svg", table.plot("bins", count=4, by="mass"))
    layers = [f"plus(ixg, start={layer})" for layer in range(view.depth)]
    table = vt.evaluate(view, pictures[:12], layers, "deletion(steps=4)")
    save_figure("sweep.svg", table.plot("sweep"))
    save_figure("histogram.svg", table.plot("histogram", methods=layers))
    maps = np.stack(
        [[vt.explain(view, image, layer).map.numpy().ravel() for layer in layers] for image in pictures[:4]]
    )
    alike = np.mean([np.corrcoef(map_) for map_ in maps], axis=0)
    names = [str(layer) for layer in range(view.depth)]
    note = "Mean correlation of the maps of plus(ixg) from two start layers, over 4 images."
    save_figure("matrix.svg", figures.matrix(alike, names, "Agreement of layers", note, axis_label="start layer"))


def pictures_of(view: vt.VisionModel, picture: Any) -> None:
    result = {method: vt.explain(view, picture, method) for method in (*METHODS, "random")}
    inputs = view.preprocess.to_tensor(result["ixg"].image)
    size = inputs.shape[1] * inputs.shape[2]
    need = RankedRemoval.deletion("black", [round(share * size) for share in (0, 0.1, 0.2, 0.5, 0.9)])
    small("strips.png", states_strip(view, inputs, {name: item.map for name, item in result.items()}, need, width=5))
    rows: dict[str, list[Any]] = {name: [item.map.numpy()] for name, item in result.items() if name in METHODS}
    model = copy.deepcopy(view.module)
    torch.manual_seed(0)
    stages = ["trained"]
    for layer in reversed(range(view.depth - 4, view.depth)):
        for parameter in vt.wrap(model).get_block(layer).parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        stages.append(f"block {layer}")
        for name, row in rows.items():
            row.append(vt.explain(vt.wrap(model), picture, name, target=result[name].target).map.numpy())
    alike = {name: [np.corrcoef(row[0].ravel(), item.ravel())[0, 1] for item in row] for name, row in rows.items()}
    note = "Blocks drawn anew from the last one downwards; under each map its correlation with the first."
    small("cascade.png", figures.cascade(rows, stages, alike, "Cascading randomisation", note, width=5))


def radar(view: vt.VisionModel) -> None:
    funnybirds = vt.funnybirds(view, ["quick", "generic"], vt.world.World(n=100), oracle=True)
    save_figure("radar.svg", funnybirds.plot(["quick", "generic", "random", "oracle"]))


def main() -> None:
    view = vt.load("world")
    pictures = list(vt.world.World(n=80).images())
    radar(view)
    pictures_of(view, pictures[0])
    tables(view, pictures)


if __name__ == "__main__":
    main()
