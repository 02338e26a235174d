"""Loading by name: options, refusals, the hub that cannot be reached, and adapters of other packages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import vitreous as vt
from families import FAMILIES
from vitreous.errors import ModelError
from vitreous.models import ModelInfo, registry
from vitreous.models import registry as hub
from vitreous.models.adapters import timm as timm_adapter
from vitreous.models.adapters import timm as timm_vit

NAME = "timm/vit_tiny_patch16_224"
SMALL: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}


def test_load_options() -> None:
    model = vt.load(
        NAME, pretrained=False, class_names=list("abcde"), dtype="float64", **{**SMALL, "img_size": (32, 64)}
    )
    assert (model.name, model.grid(), model.num_classes, model.depth) == (NAME, (2, 4), 5, 2)
    assert (model.preprocess.size, model.class_names) == ((32, 64), list("abcde"))
    assert (model.dtype, model.device.type, model.module.training) == (torch.float64, "cpu", False)
    assert model.class_index("d") == 3
    assert vt.load(NAME, pretrained=False, device="auto", img_size=32).label(281) == "tabby"
    assert vt.load(f"{NAME}.augreg_in21k", pretrained=False, depth=1, img_size=32).num_classes == 21843


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("timm/vit_tiny_patch61_224", {}, "'timm/vit_tiny_patch61_224'; did you mean timm/vit_tiny_patch16_224"),
        ("vit_tiny_patch16_224", {}, "'vit_tiny_patch16_224'; did you mean timm/vit_tiny_patch16_224"),
        ("zzz/qqq", {}, "'zzz/qqq'; known: world"),
        ("timm/regnetx_002", {}, "RegNet"),
        ("timm/swinv2_cr_tiny_224", {"img_size": 64}, "SwinTransformerV2Cr"),
        ("timm/eva02_enormous_patch14_clip_224", {"depth": 1, "embed_dim": 32, "num_heads": 2}, "EvaBlockPostNorm"),
        (f"{NAME}.nonsense", {}, "nonsense"),
        (NAME, {"num_classes": 0}, "no classifier"),
        (NAME, {"img_size": 0}, "0"),
        (NAME, {"img_size": 8}, "8"),  # smaller than one patch
        (NAME, {"nonsense": 3}, "nonsense"),
        (NAME, {"device": "banana"}, "'banana'"),
        (NAME, {"dtype": "int8"}, "'int8' is not one of"),
        (NAME, {"dtype": "nn"}, "'nn' is not one of"),
        (NAME, {"dtype": "float8_e4m3fn"}, "'float8_e4m3fn' is not one of"),
        (NAME, {"class_names": ["cat"]}, "1000 classes but 1 labels"),
    ],
)
def test_load_refuses(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        vt.load(name, pretrained=False, **options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offline_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    with pytest.raises(ModelError, match="could not fetch the weights") as told_offline:  # HF_HUB_OFFLINE is set here
        vt.load(NAME)
    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="hub cannot be reached") as unreachable:
        vt.load(NAME)
    for caught in (told_offline, unreachable):
        assert NAME in str(caught.value)
        assert "pretrained=False" in str(caught.value)
        assert "\n" not in str(caught.value)


class Mine(VisionTransformer):
    pass


class MyAdapter:
    prefix = "mine"

    def accepts(self, module: nn.Module) -> bool:
        return isinstance(module, Mine)

    def wrap(self, module: nn.Module, **facts: Any) -> vt.VisionModel:
        return timm_vit.TimmViT(module, **{"name": "mine/seen", **facts})

    def load(self, name: str, **options: Any) -> nn.Module:
        return Mine(**{**SMALL, **options}).eval()

    def models(self) -> list[ModelInfo]:
        return [ModelInfo("mine/tiny", "mine", 32, ())]


def test_third_party_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(group: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(load=MyAdapter)] if group == "vitreous.adapters" else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry.adapters.cache_clear()
    try:
        assert "mine/tiny" in [info.name for info in vt.list_models()]
        assert NAME in [info.name for info in vt.list_models()]
        model = vt.load("mine/tiny", depth=1)
        assert (type(model.module), model.name, model.depth) == (Mine, "mine/tiny", 1)
        assert vt.wrap(Mine(**SMALL)).name == "mine/seen"  # before timm's own adapter, which would take it too
        assert vt.wrap(FAMILIES["vit"]()).family == "timm"
    finally:
        registry.adapters.cache_clear()


def test_models_are_listed() -> None:
    listed = {info.name: info for info in vt.list_models()}
    assert listed[NAME].size == 224
    assert "augreg_in21k_ft_in1k" in listed[NAME].pretrained
    assert listed["timm/vit_base_patch16_384"].size == 384
    assert "timm/deit_tiny_distilled_patch16_224" in listed
    for name in ("beitv2_base_patch16_224", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3"):
        assert f"timm/{name}" in listed
    assert listed["timm/swin_tiny_patch4_window7_224"].size == 224
    assert listed["timm/swinv2_tiny_window8_256"].size == 256
    assert "timm/eva02_enormous_patch14_clip_224" not in listed  # post-norm
    assert len(listed) == len(vt.list_models())


MODULES = ("vision_transformer", "deit", "beit", "eva", "swin_transformer", "swin_transformer_v2")
CONVOLUTIONAL = ("resnet", "densenet", "convnext", "vgg", "efficientnet")
"""Wrapped by running them once, which no model without weights can: only their names are compared."""


@pytest.mark.slow
def test_every_listed_model_is_accepted_and_no_other() -> None:
    listed = {info.name.removeprefix("timm/") for info in vt.list_models() if info.name.startswith("timm/")}
    family = {name for module in MODULES for name in timm.list_models(module=module)}
    assert listed & family < family
    assert listed - family == {name for module in CONVOLUTIONAL for name in timm.list_models(module=module)}
    wrong = []
    for name in sorted(family):
        model = timm.create_model(name, device="meta", num_classes=10)
        try:
            accepted = timm_adapter.ADAPTER.wrap(model).num_classes == 10  # vt.wrap refuses models without weights
        except ModelError:
            accepted = False
        if accepted != (name in listed):
            wrong.append(name)
    assert not wrong
