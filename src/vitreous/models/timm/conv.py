"""timm's convolutional networks: which modules of each family make the chain of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import timm.data
from timm.models import convnext, densenet, efficientnet, resnet, vgg
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.chains import by_convolutions, by_stages, dense
from vitreous.models.conv import Chain, ConvView
from vitreous.models.preprocess import Preprocess
from vitreous.models.timm.common import imagenet_labels
from vitreous.models.transforms import timm_preprocess

__all__ = ["TimmConv"]

Convert = Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]]


def _convnext(model: Any) -> Chain:
    stages = [[f"stages.{n}.blocks.{m}" for m in range(len(stage.blocks))] for n, stage in enumerate(model.stages)]
    between = [[f"stages.{n}.downsample"] for n in range(1, len(stages))]
    return by_stages(stages, [*between, ["norm_pre"]])


def _efficientnet(model: Any) -> Chain:
    stages = [[f"blocks.{n}.{m}" for m in range(len(stage))] for n, stage in enumerate(model.blocks)]
    return by_stages(stages, [*[[] for _ in stages[1:]], ["conv_head", "bn2"]])


def _resnet(model: Any) -> Chain:
    stages = [[f"layer{n}.{m}" for m in range(len(getattr(model, f"layer{n}")))] for n in range(1, 5)]
    return by_stages(stages, [[] for _ in stages])


def _as_it_is(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return tensors


def _of_densenet(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return dict(densenet._filter_torchvision_pretrained(tensors))


def _of_vgg(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return dict(vgg._filter_fn(tensors))


_FAMILIES: dict[type[nn.Module], tuple[Callable[[Any], Chain], Convert]] = {
    resnet.ResNet: (_resnet, _as_it_is),
    densenet.DenseNet: (dense, _of_densenet),
    convnext.ConvNeXt: (_convnext, convnext.checkpoint_filter_fn),
    vgg.VGG: (by_convolutions, _of_vgg),
    efficientnet.EfficientNet: (_efficientnet, _as_it_is),
}
"""A family's class: its chain, and how foreign checkpoints become timm's."""


class TimmConv(ConvView):
    """A timm ResNet (also Wide, ResNeXt, SE), DenseNet, ConvNeXt, VGG or EfficientNet, or a relative of one class.

    Where class activation maps look by default: after the last block of a ResNet or ConvNeXt, after the last
    normalised and rectified map of a DenseNet, after the convolution and activation that end the features of an
    EfficientNet, after the last ReLU of a VGG, before its pooling.
    """

    family = "timm"
    accepts: ClassVar[tuple[type[nn.Module], ...]] = tuple(_FAMILIES)
    modules: ClassVar[tuple[str, ...]] = ("resnet", "densenet", "convnext", "vgg", "efficientnet")
    left_out: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        labels: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        config = getattr(model, "pretrained_cfg", None) or {}
        name = name or f"timm/{config.get('architecture') or type(model).__name__}"
        if not headless and isinstance(model.get_classifier(), nn.Identity):  # type: ignore[operator]
            raise ModelError(f"{name} has no classifier; give num_classes= and a checkpoint with a head")
        chain = next(chain for kind, (chain, _) in _FAMILIES.items() if isinstance(model, kind))(model)
        preprocess = preprocess or _preprocess(model)
        super().__init__(model, chain, name, labels, preprocess, headless=headless)
        self.labels = labels or config.get("label_names") or imagenet_labels(self.classes)

    @staticmethod
    def convert(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """Turn a foreign checkpoint of the family into timm's."""
        return next(convert for kind, (_, convert) in _FAMILIES.items() if isinstance(model, kind))(tensors, model)


def _preprocess(model: Any) -> Preprocess:
    config = timm.data.resolve_model_data_config(model)
    size = getattr(model, "image_size", None)
    return timm_preprocess(config if size is None else {**config, "input_size": (3, *size)})
