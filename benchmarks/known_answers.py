"""Comparisons with known answers: two seeds, maps and boxes, parts of a creature.

Used by ``systems.py``. Methods come as functions ``(model, inputs, classes, seed=0) -> maps [n, h, w]`` by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from vitreous.datasets.images import open_image
from vitreous.metrics.bootstrap import mean, resampled

FOLDER = "imagenet-val-1k"
INSIDE = 1.5
"""How much more of a box the top fifth of the patches must show than any other fifth would."""
Explain = Callable[..., Tensor]


@dataclass(frozen=True)
class Photos:
    """Images on the device, their true and predicted classes, and how much of each patch lies in a box."""

    inputs: Tensor
    labels: Tensor
    predicted: Tensor
    covered: Tensor

    def __getitem__(self, which: slice | Tensor) -> Photos:
        return Photos(*(item[which] for item in (self.inputs, self.labels, self.predicted, self.covered)))

    def __len__(self) -> int:
        return len(self.inputs)


def read_photos(model: vt.VisionModel, folder: Path, count: int, batch: int) -> Photos:
    """Return ``count`` photographs in a random order, the same in every run."""
    rows = json.loads((folder / f"{FOLDER}.json").read_text())
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [rows[index] for index in order[:count]]

    def one(row: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        photo = open_image(folder / FOLDER / row["file"])
        seen, crop = model.preprocess.resize_and_crop(photo)
        return model.preprocess.to_tensor(seen), boxed(model, photo.size, crop, row["boxes"])

    with ThreadPoolExecutor() as pool:
        inputs, covered = zip(*pool.map(one, rows), strict=True)
    images = model.cast(torch.stack(inputs))
    logits = torch.cat([model.logits(part) for part in images.split(batch)])
    labels = torch.tensor([row["label"] for row in rows], device=images.device)
    return Photos(images, labels, logits.argmax(dim=1), torch.stack(covered).to(images))


def boxed(
    model: vt.VisionModel, size: tuple[int, int], crop: Sequence[float], boxes: Iterable[Sequence[float]]
) -> Tensor:
    """Return how much of each patch lies inside any of the boxes, which are fractions of the photograph's sides."""
    height, width = model.preprocess.size
    inside = torch.zeros(height, width)
    horizontal, down = width / (crop[2] - crop[0]), height / (crop[3] - crop[1])
    for box in boxes:
        left, right = (min(max(round((box[i] * size[0] - crop[0]) * horizontal), 0), width) for i in (0, 2))
        top, bottom = (min(max(round((box[i] * size[1] - crop[1]) * down), 0), height) for i in (1, 3))
        inside[top:bottom, left:right] = 1
    return patches(inside[None], model.grid())[0]


def patches(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return how much of each patch a mask covers."""
    return F.adaptive_avg_pool2d(masks[:, None].float(), grid)[:, 0]


def ranks(maps: Tensor) -> Tensor:
    """Return ranks of the values of each map, counted twice over: equal values share their mean rank."""
    flat = maps.flatten(1).double().contiguous()
    ordered = flat.sort(dim=1).values
    return (torch.searchsorted(ordered, flat) + torch.searchsorted(ordered, flat, right=True)).double()


def spearman(one: Tensor, other: Tensor) -> Tensor:
    """Return the rank correlation of each pair of maps; 0 where one of them is constant."""
    a, b = (rank - rank.mean(dim=1, keepdim=True) for rank in (ranks(one), ranks(other)))
    return F.cosine_similarity(a, b, dim=1)


def seeds(
    model: vt.VisionModel, photos: Photos, explain: Mapping[str, Explain], least: Mapping[str, float]
) -> dict[str, Any]:
    """Return how well the maps of two seeds agree, on average, and how well they must."""
    result = {}
    for name, limit in least.items():
        one, other = (explain[name](model, photos.inputs, photos.predicted, seed) for seed in (0, 1))
        rho = spearman(one, other)
        verdict = "ok" if rho.mean() >= limit else "MISSED"
        result[name] = {"mean": rho.mean().item(), "least": rho.min().item(), "limit": limit, "verdict": verdict}
        print(f"  {name:44s} {rho.mean():.3f} (least {rho.min():.3f}), at least {limit:g}: {verdict}")
    return {"images": len(photos), "methods": result}


def top_fifth(maps: Tensor, covered: Tensor) -> Tensor:
    """Return how much of the top fifth of the patches of each map is covered, ``[n]``; ties are broken at random."""
    flat, truth = maps.flatten(1), covered.flatten(1).to(maps)
    order = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0)).to(flat.device)
    best = flat[:, order].sort(dim=1, descending=True, stable=True).indices[:, : round(flat.shape[1] / 5)]
    return truth[:, order].gather(1, best).mean(dim=1)


def inside(maps: Tensor, covered: Tensor) -> dict[str, float]:
    """Return the mean share of the top fifth inside over the mean share of all patches, with its interval."""
    columns = torch.stack([top_fifth(maps, covered), covered.flatten(1).mean(dim=1).to(maps)], dim=1)
    shares = columns.double().cpu().numpy()
    means = resampled([(column[:, None], mean) for column in shares.T])
    low, upper = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975])
    top, every = shares.mean(axis=0)
    return {"ratio": top / every, "low": low, "high": upper, "inside": top, "area": every}


def print_inside(name: str, figures: Mapping[str, Any]) -> None:
    limit = f", at least {figures['limit']:g}: {figures['verdict']}" if "limit" in figures else ""
    print(f"  {name:44s} {figures['ratio']:.2f} [{figures['low']:.2f}, {figures['high']:.2f}]{limit}")


def boxes(
    model: vt.VisionModel, photos: Photos, count: int, explain: Mapping[str, Explain], systems: Iterable[str]
) -> dict[str, Any]:
    """The figure for photographs that are classified correctly and whose box is less than half of what is seen."""
    area = photos.covered.mean(dim=(1, 2))
    good = (photos.predicted == photos.labels) & (area > 0) & (area < 0.5)
    subset = photos[good.nonzero().flatten()[:count]]
    if not len(subset):
        print("  there is no such image")
        return {"images": 0, "methods": {}}
    result: dict[str, Any] = {}
    for name, item in explain.items():
        result[name] = inside(item(model, subset.inputs, subset.predicted), subset.covered)
        if name in set(systems):
            verdict = "ok" if result[name]["ratio"] >= INSIDE else "MISSED"
            result[name] |= {"limit": INSIDE, "verdict": verdict}
        print_inside(name, result[name])
    return {"images": len(subset), "methods": result}


def world(count: int, explain: Mapping[str, Explain], model: vt.VisionModel) -> dict[str, Any]:
    """The same for the creature, and for the distinctive part of its class; for a model of the world."""
    from vitreous.world import PARTS, World, distinctive_part

    device = model.device
    mean, std = (
        torch.tensor(mean, device=device).view(-1, 1, 1) for mean in (model.preprocess.mean, model.preprocess.std)
    )
    inputs, labels, creatures, telling = [], [], [], []
    for sample, seen in World(n=count, size=model.preprocess.size[0]).batches(256, device):
        label = sample.label[:, 0]
        part = torch.tensor([PARTS.index(distinctive_part(item)) for item in label.tolist()], device=label.device)
        inputs.append(model.cast((seen.images - mean) / std))
        labels.append(label)
        creatures.append(patches(seen.creature, model.grid()))
        telling.append(patches(seen.parts[torch.arange(len(part), device=part.device), part], model.grid()))
    images, truth = torch.cat(inputs), {"creature": torch.cat(creatures), "telling part": torch.cat(telling)}
    predicted = torch.cat([model.logits(part).argmax(dim=1) for part in inputs])
    right = (predicted == torch.cat(labels)) & (truth["telling part"].amax(dim=(1, 2)) > 0)
    result: dict[str, Any] = {mask: {} for mask in truth}
    for name, element in explain.items():
        maps = element(model, images[right], predicted[right])
        for mask, covered in truth.items():
            result[mask][name] = inside(maps, covered[right])
            print_inside(f"{name}, {mask}", result[mask][name])
    return {"images": int(right.sum()), **result}
