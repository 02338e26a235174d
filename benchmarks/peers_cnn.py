"""Beside other libraries on small convolutional networks: the same numbers, method by method, in float64.

Run ``pip install 'vitreous[peers]'`` and then ``python benchmarks/peers_cnn.py`` (a minute on a CPU). Captum,
pytorch-grad-cam and zennit get the same models (those of the tests: ResNet and VGG, random weights far from zero),
images and classes. What they do to a map afterwards is undone or done here: their ReLU and scaling are left out, pixels
are summed over channels. Relevance starts with the logit of a class, which zennit is told as a function of its output.
Every row tells the largest difference, and the largest number of the map beside it.

Where a row as it comes is not within 1e-5 there is a reason, and a row without that reason:

- Captum's DeepLift ignores its own rule for max pooling where a ReLU comes right before, because both hook one tensor.
  With a copy between them ``deeplift@captum`` (ties of a window to the first) agrees where windows do not overlap.
  Where they do, as in a ResNet, Captum then unpools with ``max_unpool2d``, which keeps one of several windows that
  share a winner, and its map no longer sums to the difference in score, as ours does: for overlapping windows no row of
  Captum is a reference, and the tests have their own.
- zennit folds a batch norm, and makes it the identity but for its epsilon: what follows is scaled by
  ``1 / sqrt(1 + eps)``. It agrees where epsilon is zero.
- pytorch-grad-cam rounds the scores of AblationCAM to float32, which shows in a map of large numbers. It agrees where
  it is made to keep float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import captum.attr
import numpy as np
import pytorch_grad_cam
import torch
import zennit.composites
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn
from zennit.attribution import Gradient
from zennit.torchvision import ResNetCanonizer, VGGCanonizer

import vitreous as vt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from families import images
from families_cnn import FAMILIES

NEAR = 1e-5
CLASS = 2
BELOW = 3
"""A class whose logit is below zero where relevance is compared: the sign of the whole map."""
CAMS = {
    "GradCAM": "gradcam",
    "HiResCAM": "hirescam",
    "GradCAMPlusPlus": "gradcam_pp",
    "XGradCAM": "xgradcam",
    "LayerCAM": "layercam",
    "GradCAMElementWise": "gradcam_elementwise",
    "EigenCAM": "eigencam",
    "EigenGradCAM": "eigengradcam",
    "ScoreCAM": "scorecam",
    "AblationCAM": "ablationcam",
}
COMPOSITES = {
    "EpsilonPlus": "epsilon_plus",
    "EpsilonPlusFlat": "epsilon_plus_flat",
    "EpsilonAlpha2Beta1": "epsilon_alpha2_beta1",
    "EpsilonAlpha2Beta1Flat": "epsilon_alpha2_beta1_flat",
}

Row = tuple[str, str, str, int, Tensor, Tensor]
"""Model, the peer's name, ours, the class, the peer's map, our map."""


def without_inplace(model: nn.Module) -> nn.Module:
    """Return a copy without changes in place, which hooks of other libraries do not bear."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return copied


class Copy(nn.Module):
    """Give another tensor with the same numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def with_copies(model: nn.Module) -> nn.Module:
    """Put a copy before every max pooling."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.MaxPool2d):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, nn.Sequential(Copy(), module))
    return model


def of_captum(family: str, model: nn.Module, x: Tensor) -> Iterator[Row]:
    """Integrated gradients, guided backpropagation, guided Grad-CAM and DeepLift."""
    other = without_inplace(model)
    layer = other.get_submodule(vt.wrap(model).chain[-1][-1])  # type: ignore[attr-defined]
    values: dict[str, tuple[Any, str]] = {
        "IntegratedGradients": (captum.attr.IntegratedGradients(other), "integrated_gradients"),
        "GuidedBackprop": (captum.attr.GuidedBackprop(other), "guided_backprop"),
        "GuidedGradCam": (captum.attr.GuidedGradCam(other, layer), "guided_gradcam@captum"),
        "DeepLift": (captum.attr.DeepLift(other), "deeplift@captum"),
        "DeepLift, a copy between": (captum.attr.DeepLift(with_copies(without_inplace(model))), "deeplift@captum"),
    }
    for name, (peer, spec) in values.items():
        # one image at a time: at a max pooling its DeepLift hands the first image's gradient to all
        results = torch.cat([peer.attribute(item[None], target=CLASS) for item in x]).sum(dim=1).detach()
        yield family, f"captum {name}", spec, CLASS, results, ours(spec, model, x)


def of_grad_cam(family: str, model: nn.Module, x: Tensor) -> Iterator[Row]:
    """Every class activation map, before ReLU and scaling."""
    for name, spec in CAMS.items():
        yield family, f"grad-cam {name}", spec, CLASS, cam_of(name, model, x), ours(spec, model, x)
    with mock.patch.object(pytorch_grad_cam.ablation_cam, "np", Float64NumPy()):
        result = cam_of("AblationCAM", model, x)
    yield family, "grad-cam AblationCAM in float64", "ablationcam", CLASS, result, ours("ablationcam", model, x)


class Float64NumPy:
    """NumPy whose float32 is float64."""

    float32 = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def cam_of(name: str, model: nn.Module, x: Tensor) -> Tensor:
    """Return one of pytorch-grad-cam's maps at the last feature map, before ReLU and scaling."""
    other, targets = without_inplace(model), [ClassifierOutputTarget(CLASS) for _ in x]
    layer = other.get_submodule(vt.wrap(model).chain[-1][-1])  # type: ignore[attr-defined]
    with getattr(pytorch_grad_cam, name)(other, [layer]) as cam:
        outputs = cam.activations_and_grads(x)
        sum(outputs[:, CLASS]).backward()
        values = cam.activations_and_grads.activations[0].detach().numpy()
        slopes = cam.activations_and_grads.gradients[0].detach().numpy()
        return torch.from_numpy(np.asarray(cam.get_cam_image(x, layer, targets, values, slopes, False))).double()


def of_zennit(family: str, model: nn.Module, x: Tensor) -> Iterator[Row]:
    """Relevance by its composites, at the pixels, from the logit of a class above zero and of one below."""
    canonizer = ResNetCanonizer if "resnet" in family else VGGCanonizer
    for target in (CLASS, BELOW):
        one = torch.eye(5, dtype=x.dtype)[target]
        for name, preset in COMPOSITES.items():
            composite = getattr(zennit.composites, name)(canonizers=[canonizer()])
            with Gradient(without_inplace(model), composite) as attribute:
                _, result = attribute(x.clone(), lambda logits, one=one: logits * one)
            spec, maps = f"lrp@{preset}", result.sum(dim=1).detach()
            yield family, f"zennit {name}", spec, target, maps, ours(spec, model, x, target)


def ours(spec: str, model: nn.Module, x: Tensor, target: int = CLASS) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vt.VitreousWarning)
        return vt.get_method(spec).attribute(model, x, target=target)


def apart(model: nn.Module) -> nn.Module:
    """Return the ResNet with pooling windows that do not overlap."""
    changed = copy.deepcopy(model)
    changed.maxpool = nn.MaxPool2d(2)
    return changed


def no_eps(model: nn.Module) -> nn.Module:
    """Return the model with batch norms that add nothing to the variance."""
    changed = copy.deepcopy(model)
    for module in changed.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0
    return changed


def aligned(peer: str, reference: Tensor, values: Tensor) -> Tensor:
    """Turn a principal component, whose sign is a convention, the way ours points."""
    if "Eigen" not in peer:
        return reference
    sign = (reference * values).sum(dim=(1, 2), keepdim=True).sign()
    return reference * sign


def numbers(maps: Tensor) -> list[list[float]]:
    """Return some numbers of each map, and the sum of all: what the tests hold of a peer."""
    subset = torch.linspace(0, maps[0].numel() - 1, 7).long()
    return [[*item.flatten()[subset].tolist(), item.sum().item()] for item in maps.double()]


def rows() -> Iterator[Row]:
    values: dict[str, nn.Module] = {
        name: FAMILIES[name]().double() for name in ("resnet", "vgg", "tv_resnet", "tv_vgg")
    }
    values |= {"resnet, windows apart": apart(values["resnet"]), "tv_resnet, no eps": no_eps(values["tv_resnet"])}
    works: list[tuple[str, Callable[[str, nn.Module, Tensor], Iterator[Row]]]] = [
        *((name, of_captum) for name in ("resnet", "resnet, windows apart", "vgg")),
        *((name, of_grad_cam) for name in ("resnet", "vgg")),
        *((name, of_zennit) for name in ("tv_resnet", "tv_resnet, no eps", "tv_vgg")),
    ]
    for name, work in works:
        yield from work(name, values[name], images(values[name], 2).double())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    versions = {"vitreous": vt.__version__, "torch": torch.__version__, "captum": captum.__version__}
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"{'model':22s} {'peer':33s} {'ours':29s} class {'difference':>11s} {'largest':>9s}  within {NEAR:g}")
    figures = []
    for family, peer, spec, target, other, result in rows():
        difference = float((aligned(peer, other, result) - result).abs().max())
        largest = float(result.abs().max())
        near = "yes" if difference <= NEAR else "NO"
        print(f"{family:22s} {peer:33s} {spec:29s} {target:5d} {difference:11.1e} {largest:9.2e}  {near}")
        message = {"difference": difference, "largest": largest, "numbers": numbers(aligned(peer, other, result))}
        figures.append({"model": family, "peer": peer, "ours": spec, "class": target, **message})
    if options.out:
        options.out.write_text(json.dumps({"versions": versions, "rows": figures}, indent=1))


if __name__ == "__main__":
    main()
