"""torchvision's convolutional networks: which modules of each family make the chain of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision.models import VGG, ConvNeXt, DenseNet, EfficientNet, ResNet

from vitreous.models.chains import by_convolutions, by_stages, dense
from vitreous.models.conv import Chain, ConvView
from vitreous.models.preprocess import Preprocess
from vitreous.models.torchvision.adapter import describe
from vitreous.models.torchvision.vit import labels_of

__all__ = ["KNOWN", "TorchvisionConv"]


def _convnext(model: Any) -> Chain:
    """Stages at odd places of ``features``, what makes the next stage's map at even ones."""
    count = len(model.features)
    stages = [[f"features.{n}.{m}" for m in range(len(model.features[n]))] for n in range(1, count, 2)]
    return by_stages(stages, [[f"features.{n}"] if n < count else [] for n in range(2, count + 2, 2)])


def _efficientnet(model: Any) -> Chain:
    """Stages between the first and the last of ``features``, which are single convolutions."""
    last = len(model.features) - 1
    stages = [[f"features.{n}.{m}" for m in range(len(model.features[n]))] for n in range(1, last)]
    return by_stages(stages, [*[[] for _ in stages[1:]], [f"features.{last}"]])


def _resnet(model: Any) -> Chain:
    stages = [[f"layer{n}.{m}" for m in range(len(getattr(model, f"layer{n}")))] for n in range(1, 5)]
    return by_stages(stages, [[] for _ in stages])


KNOWN: dict[type[nn.Module], tuple[Callable[[Any], Chain], str]] = {
    ResNet: (_resnet, "resnet50"),
    DenseNet: (dense, "densenet121"),
    ConvNeXt: (_convnext, "convnext_tiny"),
    VGG: (by_convolutions, "vgg16"),
    EfficientNet: (_efficientnet, "efficientnet_b0"),
}
"""A family's class: its chain, and whose preprocessing a model in hand is taken to have."""


class TorchvisionConv(ConvView):
    """A torchvision ResNet (also Wide and ResNeXt), DenseNet, ConvNeXt, VGG or EfficientNet.

    The module takes images of any size and does not know its own: that is ``preprocess.size``, from the weights of its
    name, from ``img_size=``, or from an attribute ``image_size`` of the module. Class activation maps look where those
    of timm's families do: after the last block of a ResNet or ConvNeXt, after the convolution and activation that end
    the features of an EfficientNet, after the last ReLU of a VGG, before its pooling; and after the last norm of a
    DenseNet. The ReLU that follows it is no module here, unlike in timm, and belongs to the head: a map that was
    rectified beforehand would be cut off from the gradient wherever it is zero.
    """

    family = "torchvision"

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        labels: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        chain, stand_in = next(known for kind, known in KNOWN.items() if isinstance(model, kind))
        usual, known = describe(name, f"torchvision/{stand_in}", getattr(model, "image_size", None))
        name = name or f"torchvision/{type(model).__name__}"
        super().__init__(model, chain(model), name, labels, preprocess or usual, headless=headless)
        self.labels = labels_of(self.name, self.classes, labels, known)
