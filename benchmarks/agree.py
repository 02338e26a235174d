"""Metrics compared with public implementations, in one run: Captum, scipy, scikit-learn, scikit-image.

    pip install captum scipy scikit-learn scikit-image
    python benchmarks/agree.py

The same small model, images (scenes of the world), maps, masks and noise on both sides. Printed is the largest
difference of a score over the largest score; the command fails where one is above 1e-5.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import timm
import torch
from captum.metrics import infidelity, sensitivity_max
from scipy.stats import pearsonr, spearmanr
from skimage.metrics import structural_similarity
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

import vitreous as vt
from vitreous.metrics import Evaluation, ImageShape, Metric, MetricInfo, Request
from vitreous.metrics.ranking import enlarged
from vitreous.metrics.robustness import noisy_copies
from vitreous.metrics.similarity import SIMILARITIES

MOST = 1e-5
SIZE = 64


@dataclass
class RecordingMetric(Metric):
    """Keeps the evaluations of another metric's requests."""

    of: str = ""
    evaluations: list[Evaluation] = field(default_factory=list)

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return vt.get_metric(self.of).requests(image_shape)

    def score(self, evaluation: Evaluation) -> Any:
        self.evaluations.append(evaluation)
        return np.zeros(len(evaluation))


RecordingMetric.info = MetricInfo("recording", "benchmark", RecordingMetric)


def main() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=SIZE, num_classes=7).eval().requires_grad_(False)
    vision_model = vt.wrap(model)
    world = vt.world.World(n=6, size=SIZE)
    inputs = torch.stack([vision_model.preprocess.to_tensor(image) for image in world.images()])
    annotations = list(world.annotations())
    with torch.no_grad():
        classes = model(inputs).argmax(dim=1)
    differences = {
        "captum sensitivity_max": sensitivity_gap(vision_model, inputs, classes),
        "captum infidelity, normalised": infidelity_gap(vision_model, inputs, classes),
        **similarities(),
        **localisation(vision_model, inputs, annotations),
    }
    for name, gap in differences.items():
        print(f"{name:36s} {gap:.1e}")
    if not max(differences.values()) <= MOST:
        sys.exit(f"above {MOST:g}")


def scores(model: vt.VisionModel, inputs: Tensor, method: Any, metric: str, **options: Any) -> Any:
    return vt.evaluate(model, inputs, {"it": method}, metric, controls=False, n_bootstrap=1, **options)["it", metric]


def sensitivity_gap(model: vt.VisionModel, inputs: Tensor, classes: Tensor) -> float:
    """The same ten noisy copies of each image, explained by the same gradient."""

    def explain(x: Tensor, classes: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(model.module(x).gather(1, classes[:, None]).sum(), x)
        return (slope * x).sum(dim=1).detach()

    copies = noisy_copies(10, 0.02).of(inputs, model.preprocess, 0)
    other = sensitivity_max(
        lambda x, target: (explain(x[0] if isinstance(x, tuple) else x, target),),
        inputs,
        perturb_func=lambda x, radius=0.02: copies.flatten(0, 1),
        n_perturb_samples=10,
        max_examples_per_batch=60,
        target=classes,
    )
    ours = scores(model, inputs, lambda model, x, classes: explain(x, classes), "max_sensitivity")
    return gap(ours, other)


def infidelity_gap(model: vt.VisionModel, inputs: Tensor, classes: Tensor) -> float:
    """The same random sets of patches removed; the map spread evenly over the three channels."""
    maps = torch.randn(len(inputs), *model.grid(inputs), generator=torch.Generator().manual_seed(1))
    name = "infidelity(subsets=16)"
    ours = scores(model, inputs, maps, name)
    recording = RecordingMetric(of=name)
    vt.evaluate(model, inputs, {"it": maps}, [recording], controls=False, n_bootstrap=1)
    (evaluation,) = recording.evaluations
    masks = np.concatenate([evaluation.masks(request) for request in evaluation.requests], axis=1)
    side = SIZE // maps.shape[-1]
    gone = torch.from_numpy(masks).repeat_interleave(side, 2).repeat_interleave(side, 3)[:, :, None]
    spread = maps.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, None].expand(-1, 3, -1, -1) / (3 * side**2)
    reference = inputs.mean(dim=(2, 3), keepdim=True)

    def perturb(x: Tensor) -> tuple[Tensor, Tensor]:
        removed = gone.expand(-1, -1, 3, -1, -1).flatten(0, 1)
        count = gone.shape[1]
        return removed.to(x.dtype), torch.where(removed, reference.repeat_interleave(count, 0), x)

    other = infidelity(
        lambda x: model.module(x),
        perturb,
        inputs,
        spread,
        target=classes,
        n_perturb_samples=gone.shape[1],
        max_examples_per_batch=len(inputs) * gone.shape[1],
        normalize=True,
    )
    return gap(ours, other)


def similarities() -> dict[str, float]:
    """Random maps, and some with ties."""
    draw = np.random.default_rng(0)
    one, other = draw.normal(size=(2, 20, 24, 24))
    one[:5] = one[:5].round(0)

    def of(name: str, reference: Callable[[Any, Any], float]) -> float:
        return gap(SIMILARITIES[name](one, other), [reference(a, b) for a, b in zip(one, other, strict=True)])

    def scaled(a: Any) -> Any:
        return (a - a.min()) / (a.max() - a.min())

    def structure(a: Any, b: Any) -> float:
        gaussian = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "win_size": 11}
        _, every = structural_similarity(scaled(a), scaled(b), data_range=1.0, full=True, **gaussian)
        return float(every.mean())

    return {
        "scipy spearmanr": of("spearman", lambda a, b: spearmanr(a.ravel(), b.ravel())[0]),
        "scipy pearsonr": of("pearson", lambda a, b: pearsonr(a.ravel(), b.ravel())[0]),
        "scikit-image structural_similarity": of("ssim", structure),
    }


def localisation(model: vt.VisionModel, inputs: Tensor, annotations: list[vt.Annotation]) -> dict[str, float]:
    """Token maps at the pixels, as each metric enlarges them."""
    maps = torch.randn(len(inputs), *model.grid(inputs), generator=torch.Generator().manual_seed(2))
    names = {
        "scikit-learn average_precision_score": ("average_precision", "nearest", average_precision_score),
        "scikit-learn roc_auc_score": ("localisation_auc", "bilinear", roc_auc_score),
    }
    actual = {}
    for label, (name, upsample, other) in names.items():
        fine = enlarged(maps.double().numpy(), (SIZE, SIZE), upsample)
        expected = [other(t.mask.ravel(), item.ravel()) for t, item in zip(annotations, fine, strict=True)]
        actual[label] = gap(scores(model, inputs, maps.double(), name, annotations=annotations), expected)
    return actual


def gap(scores: Any, reference: Any) -> float:
    """Return the largest difference, over the largest reference score."""
    one, other = np.asarray(scores, np.float64), np.asarray(reference, np.float64)
    return float(np.abs(one - other).max() / np.abs(other).max())


if __name__ == "__main__":
    main()
