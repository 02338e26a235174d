"""Tiny seeded convolutional networks: every family of both libraries, and one that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.models import convnext, densenet, efficientnet, resnet, vgg
from timm.models._efficientnet_builder import decode_arch_def
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VGG, ConvNeXt, DenseNet, EfficientNet, ResNet
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.efficientnet import MBConvConfig
from torchvision.models.resnet import BasicBlock
from torchvision.models.vgg import make_layers

__all__ = ["FAMILIES", "RELU", "Plain"]

_NARROW = (8, 12, 16, 24)
_DENSE: dict[str, Any] = {"growth_rate": 4, "block_config": (2, 2), "num_classes": 5}


def _build(make: Callable[..., nn.Module], *args: Any, size: int = 32, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = make(*args, **options)
        for name, parameter in model.named_parameters():  # far from the flat start of training
            fan = parameter[0].numel()
            nn.init.normal_(parameter, std=1.6 / fan**0.5 if parameter.ndim > 1 else 0.2)
            if parameter.ndim == 1 and not name.endswith("bias"):
                parameter.data += 1
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                nn.init.normal_(buffer, std=0.3)
            if name.endswith("running_var"):
                nn.init.uniform_(buffer, 0.5, 2.0)
    model.image_size = (size, size)
    return model.eval()


def _timm_efficientnet() -> nn.Module:
    stages = decode_arch_def(
        [["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r2_k3_s2_e2_c12_se0.25"], ["ir_r1_k5_s2_e2_c16_se0.25"]]
    )
    return efficientnet.EfficientNet(stages, num_classes=5, num_features=24, stem_size=8, act_layer=nn.SiLU)


class Narrow(ResNet):
    """torchvision's ResNet with a sixteenth of its channels."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [1, 1, 2, 1], num_classes=5)
        self.fc = nn.Linear(32, 5)

    def _make_layer(self, block: Any, planes: int, blocks: int, *args: Any, **options: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 16, blocks, *args, **options)


def _tv_efficientnet() -> nn.Module:
    stages = [MBConvConfig(1, 3, 1, 8, 8, 1, 1, 1), MBConvConfig(2, 3, 2, 8, 16, 2, 1, 1)]
    return EfficientNet(stages, dropout=0.1, num_classes=5)


def _tv_convnext() -> nn.Module:
    stages = [CNBlockConfig(8, 12, 1), CNBlockConfig(12, 16, 2), CNBlockConfig(16, None, 1)]
    return ConvNeXt(stages, num_classes=5, layer_scale=0.5)


def _tv_vgg() -> nn.Module:
    model = VGG(make_layers([8, "M", 12, 12, "M", 16, "M"]), num_classes=5, init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Sequential(nn.Linear(64, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 5))
    return model


class Plain(nn.Module):
    """A network of nobody's family: functional activations in place, a pooling by hand, a layer that is a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU(True))
        self.mixed = nn.Conv2d(12, 12, 3, padding=1)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(F.relu_(self.stem(x)))
        x = F.relu(x + self.mixed(x), inplace=True)
        return self.fc(x.mean(dim=(2, 3)))


_RESNET: dict[str, Any] = {"num_classes": 5, "channels": _NARROW, "output_stride": 8}
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "resnet": partial(
        _build, resnet.ResNet, resnet.Bottleneck, (1, 1, 2, 1), num_classes=5, channels=_NARROW, output_stride=8
    ),
    "densenet": partial(_build, densenet.DenseNet, **_DENSE),
    "convnext": partial(_build, convnext.ConvNeXt, depths=(1, 1, 2, 1), dims=_NARROW, num_classes=5, output_stride=8),
    "vgg": partial(_build, vgg.VGG, [8, "M", 12, 12, "M", 16, "M"], num_classes=5, norm_layer=nn.BatchNorm2d),
    "efficientnet": partial(_build, _timm_efficientnet),
    "tv_resnet": partial(_build, Narrow, size=96),
    "tv_densenet": partial(_build, DenseNet, **_DENSE, num_init_features=8),
    "tv_convnext": partial(_build, _tv_convnext, size=48),
    "tv_vgg": partial(_build, _tv_vgg),
    "tv_efficientnet": partial(_build, _tv_efficientnet),
}
RELU = tuple(name for name in FAMILIES if name.endswith(("resnet", "densenet", "vgg")))
"""Those whose activations are ReLUs."""
