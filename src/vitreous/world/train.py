"""``python -m vitreous.world.train``: make the bundled models again, from a seed, rendering as they train."""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from vitreous import io as disk
from vitreous.errors import VitreousError
from vitreous.models.registry import device_of
from vitreous.registry import check_at_least
from vitreous.world.dataset import add_marker, add_random_marker, pair, remove_parts, shrink, split_seeds
from vitreous.world.models import SIZE, accuracy, build, check_scenes, examine
from vitreous.world.render import render
from vitreous.world.sampling import Batch, draw
from vitreous.world.species import PARTS, VARIANTS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; ``shortcut`` lets the marker betray half of the classes.

    A share ``whole_share`` of the scenes keeps all parts; in the others every part is removed with probability
    ``removal_rate``.
    """

    shortcut: bool = False
    steps: int = 1500
    batch: int = 1024
    lr: float = 1.2e-3
    weight_decay: float = 0.05
    warmup: int = 300
    parts_loss: float = 0.5
    average: float = 0.998
    seed: int = 0
    arch: str = "vit"
    whole_share: float = 0.5
    removal_rate: float = 0.3

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("seed", 0)):
            check_at_least(name, getattr(self, name), least)


RECIPES = {
    "world": Recipe(),
    "world-shortcut": Recipe(shortcut=True, steps=900),
    "world-cnn": Recipe(arch="cnn"),
    "world-cnn-shortcut": Recipe(
        shortcut=True, steps=900, arch="cnn", parts_loss=0.0, whole_share=0.0, removal_rate=0.6
    ),
}
"""A residual network sees parts sooner than markers and would trust both. Where most parts are gone and nobody asks for
them, it takes the shortcut."""
_SETTLING = 16  # batches by which batch norm is measured


def train(
    recipe: Recipe, device: torch.device, every: int = 250, look: int = 1000, model: Any = None
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Return the model (its weights averaged over the last steps) and the log of its training.

    ``model``: one of timm with 48 classes, to be trained in the place of the recipe's. It is changed.

    The log has the accuracy on ``look`` scenes of the validation split after ``every`` so many steps.

    Every step sees new scenes, many of them with parts removed, so that removing a part later is nothing strange. The
    loss is the cross-entropy of the class, and while training that of the five parts from the same pooled features.

    The statistics of batch norms belong to the weights of one step. Those of the averaged weights are measured anew, by
    the last batches.
    """
    torch.manual_seed(recipe.seed)
    model = (build(recipe.arch) if model is None else model).to(device).train()
    parts_head = nn.Linear(model.num_features, sum(len(VARIANTS[part]) + 1 for part in PARTS)).to(device)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.average))  # type: ignore[no-untyped-call]
    optimiser = torch.optim.AdamW(_groups(model, parts_head, recipe), lr=recipe.lr, betas=(0.9, 0.98))
    log, begun = [], time.perf_counter()
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * _schedule(step, recipe)
        scenes = _scenes(recipe, step, device)
        images = _images(scenes)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            pooled = model.forward_head(model.forward_features(images), pre_logits=True)
            logits, variants = model.get_classifier()(pooled).float(), parts_head(pooled).float()
        loss = _class_loss(logits, scenes.label) + recipe.parts_loss * _parts_loss(variants, scenes)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        averaged.update_parameters(model)
        if (step + 1) % every == 0 or step + 1 == recipe.steps:
            last = range(max(0, step + 1 - _SETTLING), step + 1)
            update_bn((_images(_scenes(recipe, number, device)) for number in last), averaged.module)
            share = accuracy(averaged.module, look, "val", shortcut=recipe.shortcut)
            seconds = time.perf_counter() - begun
            log.append({"step": step + 1, "loss": round(loss.item(), 4), "val": share, "seconds": round(seconds, 1)})
            _log.info("step %d: loss %.3f, val %.3f, %.0f s", step + 1, loss.item(), share, seconds)
    return averaged.module.eval(), log


def _scenes(recipe: Recipe, step: int, device: torch.device) -> Batch:
    start = (recipe.seed * recipe.steps + step) * recipe.batch
    scenes = shrink(draw(split_seeds("train", start, recipe.batch, device)), share=0.3)
    scenes = remove_parts(scenes, recipe.removal_rate, recipe.whole_share)
    return add_marker(scenes) if recipe.shortcut else add_random_marker(pair(scenes, share=0.2), share=0.3)


def _images(scenes: Batch) -> Tensor:
    return render(scenes, SIZE).images * 2 - 1


def _class_loss(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy; of two creatures each is half of the answer."""
    first = F.cross_entropy(logits, label[:, 0], reduction="none")
    second = F.cross_entropy(logits, label[:, 1].clamp(min=0), reduction="none")
    return torch.where(label[:, 1] < 0, first, (first + second) / 2).mean()


def _parts_loss(variants: Tensor, scenes: Batch) -> Tensor:
    """Mean cross-entropy of the five parts, an absent one being a variant of its own; lonely creatures only."""
    lonely = scenes.label[:, 1] < 0
    losses = [
        F.cross_entropy(scores, torch.where(variant < 0, scores.shape[1] - 1, variant), reduction="none")
        for scores, variant in zip(variants.chunk(len(PARTS), dim=1), scenes.parts[:, 0].unbind(1), strict=True)
    ]
    return (torch.stack(losses).mean(dim=0) * lonely).mean()


def _schedule(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)))


def _groups(model: nn.Module, head: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Matrices decay; vectors, position and class token do not."""
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (recipe.weight_decay, 0.0)]
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and "pos" not in name and "token" not in name
        groups[not decays]["params"].append(parameter)
    groups[1]["params"] += head.parameters()
    return groups


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, examine and write the bundled models, or some of them."""
    parser = argparse.ArgumentParser(prog="python -m vitreous.world.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("weights"), help="folder for weights and training.json")
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=RECIPES, help="these models instead of all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="instead of 1500, and 900 with the shortcut")
    parser.add_argument("--batch", type=int, default=Recipe.batch)
    parser.add_argument("--exam", type=int, default=2000, help="scenes of the exam at the end; 2000 for the card")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        _train(options, device_of(options.device))
    except (VitreousError, OSError) as error:
        parser.error(str(error))


def _train(options: argparse.Namespace, device: torch.device) -> None:
    check_scenes(options.exam)
    if device.type == "cpu":
        _log.warning("training on a CPU takes days; --steps and --batch make it short, and the model poor")
    else:
        torch.set_float32_matmul_precision("high")
    record_file = disk.check_file(options.out / "training.json", overwrite=True)
    record: dict[str, Any] = json.loads(record_file.read_text(encoding="utf-8")) if record_file.exists() else {}
    for name in (name for name in RECIPES if name in options.only):
        steps = RECIPES[name].steps if options.steps is None else options.steps
        recipe = replace(RECIPES[name], steps=steps, batch=options.batch, seed=options.seed)
        model, log = train(recipe, device, look=min(1000, options.exam))
        state = model.state_dict().items()
        tensors = {key: (value.half() if value.is_floating_point() else value).contiguous() for key, value in state}
        weights = save({key: value.cpu() for key, value in tensors.items()})
        disk.write_file(options.out / f"{name}.safetensors", weights, overwrite=True)
        model.load_state_dict(tensors)
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        environment, exam = {"torch": torch.__version__, "device": where}, examine(model, options.exam)
        record[name] = {"recipe": asdict(recipe), "made with": environment, "log": log, "exam": exam}
        _log.info("%s: %s", name, json.dumps(record[name]["exam"], indent=1))
        disk.write_file(record_file, (json.dumps(record, indent=1) + "\n").encode(), overwrite=True)


if __name__ == "__main__":
    main()
