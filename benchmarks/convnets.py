"""Convolutional networks that know the world: the bundled one and two of other families, trained here.

Used by ``ladder_cnn.py``. ``python benchmarks/convnets.py --folder nets --device cuda`` trains those that are not in
the folder yet, much as ``world-cnn`` was; on an H200 it takes about five minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from timm.models.convnext import ConvNeXt
from timm.models.densenet import DenseNet
from torch import nn

import vitreous as vt
from vitreous.world import NAMES
from vitreous.world.models import accuracy, build
from vitreous.world.train import Recipe, train

BUNDLED = "world-cnn"
RECIPES = {
    "convnext": Recipe(batch=512, lr=2.5e-3),
    "densenet": Recipe(steps=1000, batch=512, warmup=200),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "convnext": lambda: ConvNeXt(
        depths=(2, 2, 4, 2), dims=(32, 64, 96, 160), output_stride=16, ls_init_value=0.1, num_classes=len(NAMES)
    ),
    "densenet": lambda: DenseNet(growth_rate=16, block_config=(4, 6, 8), num_classes=len(NAMES)),
}
"""GELU and layer norm; ReLU, batch norm and concatenation. Both look at 8 x 8 places, as ``world-cnn`` does."""


def load(name: str, folder: Path, device: str) -> vt.VisionModel:
    """Return one of the networks, the bundled one or one from the folder."""
    if name == BUNDLED:
        return vt.load(name, device=device)
    model = OTHERS[name]()
    model.load_state_dict(load_file(folder / f"{name}.safetensors"))
    model.pretrained_cfg = build("cnn").pretrained_cfg | {"architecture": name}
    return vt.wrap(model.to(device).eval())


def centred(vision_model: vt.VisionModel) -> vt.VisionModel:
    """Return the network with logits whose mean over the classes is zero; its probabilities are the same."""
    model: Any = copy.deepcopy(vision_model.module)
    head = model.get_classifier()
    with torch.no_grad():
        head.weight -= head.weight.mean(dim=0)
        head.bias -= head.bias.mean()
    return vt.wrap(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, make in OTHERS.items():
        path = options.folder / f"{name}.safetensors"
        if not path.exists():
            torch.manual_seed(RECIPES[name].seed)
            model, log = train(RECIPES[name], torch.device(options.device), model=make())
            save_file({key: value.cpu().contiguous() for key, value in model.state_dict().items()}, path)
            print(json.dumps({"network": name, "accuracy": accuracy(model), "seconds": log[-1]["seconds"]}))


if __name__ == "__main__":
    main()
