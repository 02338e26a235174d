"""Beside other libraries: pixel flipping as Quantus runs it, and Captum's objects as methods of ``evaluate``.

Run ``pip install -e ".[peers]"`` and then ``python benchmarks/peers.py`` (a few minutes on a CPU), ``python
benchmarks/peers.py --model world --steps 16`` (seconds), or with trained weights ``--model timm/deit_tiny_patch16_224
--checkpoint weights.safetensors --pictures photos``. Both libraries get the same model, inputs, classes and pixel maps,
and are timed in turn in one run; the figure that matters is the ratio of medians.

Quantus counts channel values, and a step has to divide height times width, so at 224 pixels no step is a number of
whole pixels. Handed over as pictures of one channel and three times the height, the same values can be flipped whole
pixels at a time: that is the row "the same states". In the row "as it comes" pictures keep their three channels, and as
many steps per channel give three times as many states, of which every third is ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import captum
import numpy as np
import quantus
import torch
from captum.attr import InputXGradient, Saliency
from torch import Tensor, nn

import vitreous as vt
from vitreous.datasets.images import load_images
from vitreous.metrics import EvaluationConfig, Evaluator, ImageShape, Maps

OBJECTS = {"saliency": Saliency, "input_x_gradient": InputXGradient}


class Tall(nn.Module):
    """The model for pictures whose channels stand on top of each other: ``[B, 1, 3 H, W]``."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs.reshape(-1, *self.shape))


class Sides:
    """One model, some inputs and the classes scored; each side takes pixel maps ``[B, H, W]`` and returns curves."""

    def __init__(self, model: vt.VisionModel, inputs: Tensor, steps: int, batch: int) -> None:
        self.model, self.inputs, self.steps, self.batch = model, inputs, steps, batch
        self.size = inputs.shape[2] * inputs.shape[3]
        if self.size % steps:
            raise SystemExit(f"{steps} steps do not divide {self.size} pixels, and Quantus refuses a shorter last step")
        with torch.no_grad():
            self.classes = model.module(inputs).argmax(dim=1)
        self.tall = Tall(model.module, tuple(inputs.shape[1:])).eval()
        self.arrays, self.labels = inputs.cpu().numpy(), self.classes.cpu().numpy()

    def vitreous(self, maps: Tensor, baseline: str = "zero_norm") -> tuple[np.ndarray, np.ndarray]:
        """Return ``P`` with nothing to everything removed, ``[B, steps + 1]``, and the areas ``[B]``."""
        metric = vt.get_metric(f"deletion(steps={self.steps}, baseline={baseline})")
        image_shape = ImageShape(tuple(self.inputs.shape[2:]), self.model.grid(self.inputs))
        evaluator = Evaluator(self.model, [metric], image_shape, ["pred"], EvaluationConfig(forward_batch=self.batch))
        logits = evaluator.runner.forward(self.inputs)
        rows = {"given": np.arange(len(maps))}
        evaluator.add(self.inputs, logits, {"pred": logits.argmax(dim=1)}, {"maps": Maps(maps, rows)})
        evaluation = evaluator.finish()["maps"]
        parts, curves = metric.read(evaluation)
        return curves["deletion"].y, parts[:, 0]

    def quantus(self, maps: Tensor, baseline: float | str = 0.0, tall: bool = True) -> np.ndarray:
        """Return ``P`` after every step, ``[B, steps]``; three times as many where pictures keep their channels."""
        model, arrays, values = self.model.module, self.arrays, maps.cpu().numpy()[:, None]
        width = self.size // self.steps
        if tall:
            model, values, width = self.tall, np.tile(values, (1, 1, 3, 1)), 3 * width
            arrays = arrays.reshape(values.shape)
        flip = quantus.PixelFlipping(features_in_step=width, perturb_baseline=baseline, disable_warnings=True)
        message = {"channel_first": True, "device": str(self.inputs.device), "batch_size": self.batch}
        return np.array(flip(model, arrays, self.labels, values, **message))

    def forwards(self, batch: int) -> None:
        """Run the unmodified model on as many inputs as both sides have states."""
        inputs = self.inputs[torch.arange(batch) % len(self.inputs)]
        with torch.no_grad():
            for start in range(0, states := len(self.inputs) * self.steps, batch):
                self.model.module(inputs[: min(batch, states - start)])


def timed(works: dict[str, Callable[[], Any]], rounds: int, device: str) -> tuple[dict[str, list[float]], Any]:
    """Return the seconds of each work, in turn round by round, and what it gave."""
    result = {name: work() for name, work in works.items()}  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds, result


def without_ties(maps: Tensor) -> Tensor:
    """Return the place of every pixel in ascending order: maps of the same order whose values all differ."""
    order = maps.flatten(1).argsort(dim=1, stable=True)
    return order.argsort(dim=1).view_as(maps).float()


def decisive(model: nn.Module, inputs: Tensor) -> None:
    """Scale an untrained classifier up: all its probabilities are alike, and flat curves agree whatever is run."""
    with torch.no_grad():
        head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        head.weight.mul_(3 / model(inputs).std())


def setting(options: argparse.Namespace) -> tuple[vt.VisionModel, Tensor]:
    """Return the model and its inputs: pictures of a folder, or noise."""
    torch.manual_seed(0)
    if options.model == "world":
        model = vt.load("world")
    else:
        weights = {"checkpoint": options.checkpoint} if options.checkpoint else {"pretrained": False}
        model = vt.load(options.model, **weights)
    model.module.to(options.device).eval().requires_grad_(False)
    if options.pictures:
        tensors = [picture.tensor for picture in islice(load_images(options.pictures, model), options.images)]
        inputs = torch.stack(tensors).to(options.device)
    else:
        inputs = torch.randn(options.images, 3, *model.preprocess.size).to(options.device)
    if not (options.checkpoint or options.model == "world"):
        decisive(model.module, inputs)
    return model, inputs


def flipping(sides: Sides, options: argparse.Namespace) -> dict[str, Any]:
    """Time the two sides on the same states, and compare their curves and areas."""
    explained = vt.explain(sides.model, sides.inputs, "generic", grid="pixel")
    smooth = torch.stack([item.map for item in explained]).to(sides.inputs.device)
    maps = without_ties(smooth)
    works: dict[str, Callable[[], Any]] = {
        "forwards alone, full batches": lambda: sides.forwards(options.batch),
        "forwards alone, one step at a time": lambda: sides.forwards(min(options.batch, len(sides.inputs))),
        "Vitreous": lambda: sides.vitreous(maps),
        "Quantus, the same states": lambda: sides.quantus(maps),
        "Quantus, as it comes": lambda: sides.quantus(maps, tall=False),
    }
    seconds, result = timed(works, options.rounds, options.device)
    (curve, area), same, thrice = (result[name] for name in list(works)[2:])
    states = dict.fromkeys(works, same.size) | {"Quantus, as it comes": thrice.size}
    states["Vitreous"] += 1  # the clean images in place of the baselines alone, and one of these for all
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{'':28s} {'states':>7s} {'seconds':>8s} {'times Vitreous':>15s}")
    for name, median in medians.items():
        print(f"{name:28s} {states[name]:7d} {median:8.3f} {median / medians['Vitreous']:15.2f}")

    black, mean = (sides.vitreous(maps, name)[0][:, 1:] for name in ("black", "mean_scalar"))
    tied = sides.vitreous(smooth)[0][:, 1:]
    summed = (same[:, 1:] + same[:, :-1]).sum(axis=1) / 2  # its own AUC calls numpy.trapz, which numpy 2.4 has no more
    differences = {
        "the same states": same - curve[:, 1:],
        "as it comes, every third state": thrice[:, 2::3] - curve[:, 1:],
        "area from its curve and the clean picture": (summed + (curve[:, 0] + curve[:, 1]) / 2) / sides.steps - area,
        "equal values in the map": sides.quantus(smooth) - tied,
        "its 'black', our black": sides.quantus(maps, "black") - black,
        "its 'mean', our mean_scalar": sides.quantus(maps, "mean") - mean,
    }
    largest = {name: float(np.abs(difference).max()) for name, difference in differences.items()}
    distinct = [len(item.unique()) for item in smooth]
    print(f"curves run from {curve.max():.3f} to {curve.min():.3f}; largest difference:")
    for name, value in largest.items():
        print(f"  {name:44s} {value:.1e}")
    print(f"  (of {sides.size} values in a map {min(distinct)} to {max(distinct)} are distinct)")
    print(f"area {area.mean():.4f}; Quantus' trapezoid over steps of 1, without the clean picture: {summed.mean():.4f}")
    return {
        "states": states,
        "seconds": seconds,
        "medians": medians,
        "ratio": medians["Quantus, the same states"] / medians["Vitreous"],
        "ratio as it comes": medians["Quantus, as it comes"] / medians["Vitreous"],
        "largest difference": largest,
        "distinct values": distinct,
        "areas": {"Vitreous": area.tolist(), "Quantus": summed.tolist()},
        "curves": {"Vitreous": curve.tolist(), "Quantus": same.tolist()},
    }


def objects(sides: Sides) -> dict[str, float]:
    """Evaluate Captum's attribution objects beside our methods of the same formula; return how far scores differ."""
    result = {}
    metric = f"insdel(steps={sides.steps})"
    for name, kind in OBJECTS.items():
        methods = {"ours": name, "captum": kind(sides.model.module)}
        table = vt.evaluate(sides.model, sides.inputs, methods, metric, controls=False, batch_size=sides.batch)
        result[name] = float(np.abs(table["ours", metric] - table["captum", metric]).max())
        mean = table.mean("ours", metric)
        print(f"captum.attr.{kind.__name__} as a method: insdel {mean:+.4f}, differs from {name} by {result[name]:.1e}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="timm/vit_tiny_patch16_224", help="as vt.load takes it; world is trained")
    parser.add_argument("--checkpoint", help="weights; without them the model is untrained")
    parser.add_argument("--pictures", help="a folder; without it the inputs are noise")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--batch", type=int, default=32, help="states at once; Quantus: images at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()

    model, inputs = setting(options)
    versions = {item.__name__: item.__version__ for item in (vt, quantus, captum, torch, np)}
    weights = "trained" if options.checkpoint or options.model == "world" else "untrained"
    print(
        f"{options.model}, {weights}, {len(inputs)} images, {options.steps} steps, float32 on {options.device}, "
        f"{torch.get_num_threads()} threads"
    )
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    sides = Sides(model, inputs, options.steps, options.batch)
    figures = {"flipping": flipping(sides, options), "captum": objects(sides)}
    if options.out:
        message = {**vars(options), "out": None, "threads": torch.get_num_threads()}
        options.out.write_text(json.dumps({"options": message, "versions": versions, **figures}, indent=1))


if __name__ == "__main__":
    main()
