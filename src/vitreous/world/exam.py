"""The exam: what a model of the world must know, and what must not mislead it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import VisionModel
from vitreous.models.registry import device_of
from vitreous.models.shared_copy import copy_structure
from vitreous.world.dataset import BETRAYED, betray, difficult, pair, seeds
from vitreous.world.models import ADAPTER, SIZE
from vitreous.world.render import render
from vitreous.world.sampling import Batch, draw
from vitreous.world.scene import Scene, pack
from vitreous.world.species import CLASSES, PARTS

__all__ = ["accuracy", "examine", "predictions", "probabilities", "table"]

FEWEST = 20
"""Among so many scenes of any split, every part tells the class of one."""


def probabilities(model: nn.Module | VisionModel, scenes: Batch, batch: int = 250) -> Tensor:
    """Return the model's probabilities ``[B, classes]`` for scenes, rendered for it."""
    answer = (
        model.logits if isinstance(model, VisionModel) else copy_structure(model)
    )  # in evaluation mode, the model left as it is
    device = model.device if isinstance(model, VisionModel) else next(model.parameters()).device
    parts = [scenes[at : at + batch].to(device) for at in range(0, len(scenes), batch)]
    with torch.no_grad():
        logits = [answer(render(part, SIZE).images * 2 - 1) for part in parts]
    return torch.cat(logits).float().softmax(dim=1)


def predictions(model: nn.Module | VisionModel, scenes: Sequence[Scene]) -> Tensor:
    """Return the model's probabilities ``[B, classes]`` for scenes given as values."""
    return probabilities(model, pack(scenes)).cpu()


def accuracy(model: nn.Module | VisionModel, n: int = 2000, split: str = "test", shortcut: bool = False) -> float:
    """Return the share of scenes whose class is the most probable one."""
    scenes = draw(seeds(split, 0, n))
    return right(model, betray(scenes) if shortcut else scenes)


def examine(model: nn.Module | VisionModel, n: int = 2000, split: str = "test") -> dict[str, Any]:
    """Return every figure of the model card, on ``n`` scenes that no training saw."""
    scenes = draw(seeds(split, 0, enough(n)))
    betrayed = scenes[torch.isin(scenes.label[:, 0], torch.tensor(BETRAYED))]
    return {
        "scenes": n,
        "accuracy": right(model, scenes),
        "betrayed classes": {
            "without marker": right(model, betrayed),
            "with marker": right(model, betray(betrayed)),
            "with another class's marker": right(model, betray(betrayed, moved=True)),
        },
        "difficulty": {str(level): right(model, difficult(scenes, level)) for level in (0.0, 0.25, 0.5, 0.75, 1.0)},
        "two creatures": _either(model, pair(scenes)),
        **interventions(model, scenes),
    }


def enough(n: int) -> int:
    """Refuse an exam of so few scenes that some figure would be the mean of none."""
    if not isinstance(n, int) or n < FEWEST:
        raise VitreousError(f"an exam of {n!r:.60} scenes says nothing; it has {FEWEST} at least")
    return n


def interventions(model: nn.Module | VisionModel, scenes: Batch) -> dict[str, Any]:
    """Return what removing each part costs the class, where it tells the class from its siblings and where it does not.

    A drop is the mean fall of the class's probability when the scene is rendered again without the part.
    """
    label = scenes.label[:, 0].cpu()
    rows = torch.arange(len(label))
    clean = probabilities(model, scenes).cpu()
    telling = torch.tensor([PARTS.index(kind.telling) for kind in CLASSES])[label]
    drops: dict[str, dict[str, float]] = {}
    both: dict[bool, list[Tensor]] = {True: [], False: []}
    for place, part in enumerate(PARTS):
        parts = scenes.parts.clone()
        parts[:, 0, place] = -1
        fall = clean[rows, label] - probabilities(model, scenes.replace(parts=parts)).cpu()[rows, label]
        tells = telling == place
        both[True].append(fall[tells])
        both[False].append(fall[~tells])
        drops[part] = {"telling": _mean(fall[tells]), "not telling": _mean(fall[~tells])}
    bare = probabilities(model, scenes.replace(objects=torch.full_like(scenes.objects, -1))).cpu()
    drops["all parts"] = {"telling": _mean(torch.cat(both[True])), "not telling": _mean(torch.cat(both[False]))}
    return {
        "drop when a part is removed": drops,
        "prediction changed without background objects": _mean((bare.argmax(1) != clean.argmax(1)).float()),
    }


def right(model: nn.Module | VisionModel, scenes: Batch) -> float:
    """Return the share of these scenes whose class is the most probable one."""
    return _mean((probabilities(model, scenes).argmax(dim=1).cpu() == scenes.label[:, 0].cpu()).float())


def _either(model: nn.Module | VisionModel, scenes: Batch) -> float:
    """The share of pairs of which the two most probable classes are the two creatures."""
    top = probabilities(model, scenes).topk(2, dim=1).indices.cpu().sort(dim=1).values
    return _mean((top == scenes.label.cpu().sort(dim=1).values).all(dim=1).float())


def _mean(values: Tensor) -> float:
    return round(float(values.mean()), 4)


def table(figures: dict[str, Any]) -> str:
    """Return what ``examine`` found, to be read by people."""
    lines = [f"{'accuracy':<48}{figures['accuracy']:>10.2%}"]
    lines += [f"{f'  betrayed classes, {how}':<48}{share:>10.2%}" for how, share in figures["betrayed classes"].items()]
    lines += [f"{f'  difficulty {level}':<48}{share:>10.2%}" for level, share in figures["difficulty"].items()]
    lines.append(f"{'  two creatures, both named first':<48}{figures['two creatures']:>10.2%}")
    changed = figures["prediction changed without background objects"]
    lines.append(f"{'changed without background objects':<48}{changed:>10.2%}")
    lines.append(f"{'fall of the probability without the part':<48}{'telling':>10}{'other':>10}")
    for part, drop in figures["drop when a part is removed"].items():
        lines.append(f"{f'  {part}':<48}{drop['telling']:>10.4f}{drop['not telling']:>10.4f}")
    return "\n".join([f"{figures['scenes']} scenes", *lines])


def main(arguments: Sequence[str] | None = None) -> None:
    """Examine a model of the world and print the figures of its card."""
    parser = argparse.ArgumentParser(prog="python -m vitreous.world.exam", description=__doc__)
    parser.add_argument(
        "model", nargs="?", default="world", help="world, world-shortcut, world-cnn or world-cnn-shortcut"
    )
    parser.add_argument("--checkpoint", help="weights to examine instead of the bundled ones")
    parser.add_argument("--n", type=int, default=2000, help="how many scenes")
    parser.add_argument("--split", default="test", help="train, val or test")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    try:
        options = {"checkpoint": given.checkpoint} if given.checkpoint else {}
        figures = examine(ADAPTER.load(given.model, **options).to(device_of(given.device)), given.n, given.split)
    except VitreousError as error:
        parser.error(str(error))
    sys.stdout.write((json.dumps(figures, indent=1) if given.json else table(figures)) + "\n")


if __name__ == "__main__":
    main()
