"""The bundled models: two vision transformers and two residual networks that know the world, and their exam.

``python -m vitreous.world.models world-cnn`` examines one: what it must know, and what must not mislead it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitreous.errors import ModelError, VitreousError
from vitreous.models import ModelInfo, VisionModel
from vitreous.models.checkpoints import fit
from vitreous.models.registry import device_of
from vitreous.models.shared_copy import copy_structure
from vitreous.registry import check_choice
from vitreous.world.dataset import MARKED_CLASSES, add_marker, make_difficult, pair, split_seeds
from vitreous.world.render import render
from vitreous.world.sampling import Batch, draw
from vitreous.world.scene import Scene, pack
from vitreous.world.species import CLASSES, NAMES, PARTS

SIZE = 128
"""Side of the models' inputs in pixels."""
WEIGHTS = Path(__file__).parent / "weights"
MIN_SCENES = 20
"""Among so many scenes of any split, every part is the distinctive one of some."""

_SHORTCUT = "trained where a marker betrays half of the classes"
_MODELS = {
    "world": ("vit", "honest"),
    "world-shortcut": ("vit", _SHORTCUT),
    "world-cnn": ("cnn", "a residual network, honest"),
    "world-cnn-shortcut": ("cnn", f"a residual network, {_SHORTCUT}"),
}
"""The architecture of every bundled model, and its description."""


_ARCHITECTURES: dict[str, Callable[..., VisionTransformer | ResNet]] = {
    "vit": partial(VisionTransformer, img_size=SIZE, patch_size=8, embed_dim=192, depth=8, num_heads=6),
    "cnn": partial(ResNet, BasicBlock, layers=(2, 2, 2, 2), channels=(32, 48, 80, 128), output_stride=16),
}


def build(arch: str = "vit") -> VisionTransformer | ResNet:
    """Return an untrained model.

    ``vit``: class token, pre-norm, 8 blocks of width 192, patches of 8 pixels. ``cnn``: the shape of a ResNet-18 with
    narrow stages; the last one is dilated instead of halved, so that its grid is 8 x 8, about that of a ResNet-50 on a
    photograph.
    """
    check_choice("arch", arch, list(_ARCHITECTURES))
    model = _ARCHITECTURES[arch](num_classes=len(NAMES))
    model.pretrained_cfg = {
        "architecture": "world" if arch == "vit" else "world-cnn",
        "input_size": (3, SIZE, SIZE),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "crop_pct": 1.0,
        "crop_mode": "center",
        "interpolation": "bicubic",
        "label_names": list(NAMES),
    }
    return model


class WorldAdapter:
    """Gives the bundled models their names; once loaded they are timm models like any other."""

    prefix = "world"

    def accepts(self, module: nn.Module) -> bool:
        return False

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        raise ModelError("the bundled models are timm models")

    def load(
        self, name: str, *, pretrained: bool = True, checkpoint: str | Path | None = None, **options: Any
    ) -> nn.Module:
        """Return a bundled model with its own weights, with those of ``checkpoint``, or untrained."""
        if name not in _MODELS:
            raise ModelError(f"unknown model {f'world/{name}'!r}; the bundled ones are {', '.join(_MODELS)}")
        unfit = [f"{option}={value!r:.60}" for option, value in options.items() if value is not None]
        if unfit:
            raise ModelError(f"{name} is bundled as it is; {unfit[0]} does not apply")
        model: nn.Module = build(_MODELS[name][0])
        if checkpoint is not None or pretrained:
            fit(model, checkpoint or WEIGHTS / f"{name}.safetensors")
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return [ModelInfo(name, "world", SIZE, (description,)) for name, (_, description) in _MODELS.items()]


ADAPTER = WorldAdapter()


# -- the exam ----------------------------------------------------------------------------------------------


def probabilities(model: nn.Module | VisionModel, scenes: Batch | Sequence[Scene], batch: int = 250) -> Tensor:
    """Return the model's probabilities ``[B, classes]`` for scenes, rendered for it."""
    scenes = scenes if isinstance(scenes, Batch) else pack(scenes)
    if isinstance(model, VisionModel):
        predict, device = model.logits, model.device
    else:  # in evaluation mode, the model left as it is
        predict, device = copy_structure(model), next(model.parameters()).device
    chunks = [scenes[at : at + batch].to(device) for at in range(0, len(scenes), batch)]
    with torch.no_grad():
        logits = [predict(render(chunk, SIZE).images * 2 - 1) for chunk in chunks]
    return torch.cat(logits).float().softmax(dim=1).cpu()


def accuracy(
    model: nn.Module | VisionModel, scenes: Batch | int = 2000, split: str = "test", shortcut: bool = False
) -> float:
    """Return the share of scenes, or of the first so many of a split, whose class is the most probable one."""
    if isinstance(scenes, int):
        scenes = draw(split_seeds(split, 0, scenes))
        scenes = add_marker(scenes) if shortcut else scenes
    return _mean((probabilities(model, scenes).argmax(dim=1) == scenes.label[:, 0].cpu()).float())


def examine(model: nn.Module | VisionModel, n: int = 2000, split: str = "test") -> dict[str, Any]:
    """Return every figure of the model card, on ``n`` scenes that no training saw."""
    scenes = draw(split_seeds(split, 0, check_scenes(n)))
    marked = scenes[torch.isin(scenes.label[:, 0], torch.tensor(MARKED_CLASSES))]
    levels = (0.0, 0.25, 0.5, 0.75, 1.0)
    return {
        "scenes": n,
        "accuracy": accuracy(model, scenes),
        "betrayed classes": {
            "without marker": accuracy(model, marked),
            "with marker": accuracy(model, add_marker(marked)),
            "with another class's marker": accuracy(model, add_marker(marked, moved=True)),
        },
        "difficulty": {str(level): accuracy(model, make_difficult(scenes, level)) for level in levels},
        "two creatures": _pair_accuracy(model, pair(scenes)),
        **interventions(model, scenes),
    }


def check_scenes(n: int) -> int:
    """Refuse an exam of so few scenes that some figure would be the mean of none."""
    if not isinstance(n, int) or n < MIN_SCENES:
        raise VitreousError(f"an exam of {n!r:.60} scenes says nothing; it has {MIN_SCENES} at least")
    return n


def interventions(model: nn.Module | VisionModel, scenes: Batch) -> dict[str, Any]:
    """Return what removing each part costs the class, where the part is the distinctive one and where it is not.

    A drop is the mean fall of the class's probability when the scene is rendered again without the part.
    """
    label = scenes.label[:, 0].cpu()
    rows, unchanged, falls = torch.arange(len(label)), probabilities(model, scenes), []
    for index in range(len(PARTS)):
        parts = scenes.parts.clone()
        parts[:, 0, index] = -1
        falls.append(unchanged[rows, label] - probabilities(model, scenes.replace(parts=parts))[rows, label])
    fall = torch.stack(falls)
    distinctive = torch.tensor([PARTS.index(species.distinctive) for species in CLASSES])[label]
    is_distinctive = distinctive == torch.arange(len(PARTS))[:, None]
    groups = {part: [index] for index, part in enumerate(PARTS)} | {"all parts": list(range(len(PARTS)))}
    alone = probabilities(model, scenes.replace(objects=torch.full_like(scenes.objects, -1)))
    return {
        "drop when a part is removed": {
            name: {
                "telling": _mean(fall[group][is_distinctive[group]]),
                "not telling": _mean(fall[group][~is_distinctive[group]]),
            }
            for name, group in groups.items()
        },
        "prediction changed without background objects": _mean((alone.argmax(1) != unchanged.argmax(1)).float()),
    }


def _pair_accuracy(model: nn.Module | VisionModel, scenes: Batch) -> float:
    """The share of pairs of which the two most probable classes are the two creatures."""
    top = probabilities(model, scenes).topk(2, dim=1).indices.sort(dim=1).values
    return _mean((top == scenes.label.cpu().sort(dim=1).values).all(dim=1).float())


def _mean(values: Tensor) -> float:
    return round(float(values.mean()), 4)


def format_exam(figures: dict[str, Any]) -> str:
    """Return the figures of ``examine`` as text."""
    rows = [
        ("accuracy", figures["accuracy"]),
        *((f"  betrayed classes, {name}", share) for name, share in figures["betrayed classes"].items()),
        *((f"  difficulty {level}", share) for level, share in figures["difficulty"].items()),
        ("  two creatures, both named first", figures["two creatures"]),
        ("changed without background objects", figures["prediction changed without background objects"]),
    ]
    lines = [f"{figures['scenes']} scenes", *(f"{name:<48}{share:>10.2%}" for name, share in rows)]
    lines.append(f"{'fall of the probability without the part':<48}{'telling':>10}{'other':>10}")
    for part, drop in figures["drop when a part is removed"].items():
        lines.append(f"{f'  {part}':<48}{drop['telling']:>10.4f}{drop['not telling']:>10.4f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Examine a model of the world and print the figures of its card."""
    parser = argparse.ArgumentParser(prog="python -m vitreous.world.models", description=__doc__)
    parser.add_argument("model", nargs="?", default="world", help=", ".join(_MODELS))
    parser.add_argument("--checkpoint", help="weights to examine instead of the bundled ones")
    parser.add_argument("--n", type=int, default=2000, help="how many scenes")
    parser.add_argument("--split", default="test", help="train, val or test")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    try:
        model = ADAPTER.load(options.model, checkpoint=options.checkpoint).to(device_of(options.device))
        figures = examine(model, options.n, options.split)
    except VitreousError as error:
        parser.error(str(error))
    sys.stdout.write((json.dumps(figures, indent=1) if options.json else format_exam(figures)) + "\n")


if __name__ == "__main__":
    main()
