"""One architecture in three libraries: a plain ViT's weights go from each to each, and the head tells the classes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, get_model

import families
import families_timm
import families_torchvision
import vitreous as vt
from vitreous.errors import CheckpointError
from vitreous.models.checkpoints import classes_in, fit

families_hf = pytest.importorskip("families_hf")

MODELS: dict[str, Callable[[], nn.Module]] = {
    "timm": partial(families._build, mlp_ratio=2),
    "Hugging Face": partial(families_hf.build, "ViTForImageClassification", "ViTConfig", layer_norm_eps=1e-6),
    "torchvision": families_torchvision.MODELS["vit"],
}


def logits(model: nn.Module) -> Tensor:
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = model(inputs)
    return output if isinstance(output, Tensor) else output.logits


def blank(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    for parameter in model.parameters():
        parameter.data.zero_()
    return model


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.parametrize("wanted", MODELS)
def test_from_each_library_to_each(tmp_path: Path, caplog: pytest.LogCaptureFixture, library: str, wanted: str) -> None:
    source, model = MODELS[library](), blank(MODELS[wanted])
    torch.save({"state_dict": {f"module.{name}": t for name, t in source.state_dict().items()}}, tmp_path / "w.pth")
    with caplog.at_level(logging.INFO, "vitreous"):
        fit(model, tmp_path / "w.pth")
    torch.testing.assert_close(logits(model), logits(source), rtol=1e-4, atol=1e-4)
    assert (f"translated from {library}'s names" in caplog.text) == (library != wanted)


OLDER = {
    "vit.layers.": "vit.encoder.layer.",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


@pytest.mark.parametrize("wanted", MODELS)
def test_older_names_of_hugging_face(tmp_path: Path, wanted: str) -> None:
    source = MODELS["Hugging Face"]()
    table = source.state_dict()
    for new, old in OLDER.items():
        table = {name.replace(new, old): tensor for name, tensor in table.items()}
    assert "vit.encoder.layer.0.intermediate.dense.weight" in table
    torch.save(table, tmp_path / "w.pth")
    model = blank(MODELS[wanted])
    fit(model, tmp_path / "w.pth")
    torch.testing.assert_close(logits(model), logits(source), rtol=1e-4, atol=1e-4)


def test_a_distilled_deit_has_two_heads(tmp_path: Path) -> None:
    from timm.models.deit import VisionTransformerDistilled

    source = families_hf.build("DeiTForImageClassificationWithTeacher", "DeiTConfig", layer_norm_eps=1e-6)
    model = families._build(VisionTransformerDistilled, mlp_ratio=2)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    fit(model, tmp_path / "w.pth")
    torch.testing.assert_close(logits(model), logits(source), rtol=1e-4, atol=1e-4)


REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "deeper": (partial(families._build, mlp_ratio=2, depth=4), MODELS["torchvision"], r"unexpected \(blocks\.3\.norm1"),
    "shallower": (
        partial(families._build, mlp_ratio=2, depth=2),
        MODELS["Hugging Face"],
        r"missing \(vit\.(layers|encoder\.layer)\.2\.",
    ),
    "wider mlp": (
        partial(families._build, mlp_ratio=4),
        MODELS["torchvision"],
        r"mlp\.0\.weight \(96, 24\) for \(48, 24",
    ),
    "LayerScale": (families.FAMILIES["deit3"], MODELS["Hugging Face"], r"unexpected \(blocks\.0\.ls1\.gamma"),
    "registers": (MODELS["torchvision"], families.FAMILIES["registers"], r"missing \(reg_token"),
    "mean instead of class token": (families.FAMILIES["gap"], MODELS["torchvision"], r"missing \(class_token"),
    "mean over all tokens": (MODELS["torchvision"], families.FAMILIES["gap_all"], r"missing \(cls_token"),
    "a stem of convolutions": (families_torchvision.MODELS["stem"], MODELS["timm"], r"missing \(patch_embed\.proj"),
    "another family": (families_timm.FAMILIES["swin"], MODELS["timm"], r"missing \(cls_token"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_the_same_architecture_is_refused(tmp_path: Path, case: str) -> None:
    source, wanted, message = REFUSED[case]
    torch.save(source().state_dict(), tmp_path / "w.pth")
    model = wanted()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as caught:
        fit(model, tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


# -- by name, with the classes of the head -------------------------------------------------------------

SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 3}


@pytest.mark.parametrize(
    ("make", "classes"),
    [
        *((families.FAMILIES[name], 5) for name in ("vit", "deit_distilled", "siglip")),
        *((families_timm.FAMILIES[name], 5) for name in ("beit", "eva", "swin", "swinv2")),
        *((families_torchvision.MODELS[name], 5) for name in ("vit", "swin")),
        *((families_hf.FAMILIES[name], 5) for name in ("hf_vit", "hf_deit_teacher", "hf_dinov2", "hf_swin")),
        (partial(families._build, num_classes=1), 1),
        (partial(families._build, num_classes=0), None),
    ],
)
def test_classes_in_a_head(make: Callable[[], nn.Module], classes: int | None) -> None:
    assert classes_in(make().state_dict()) == classes


def test_timm_takes_the_classes_of_the_head(tmp_path: Path) -> None:
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, num_classes=7, img_size=32, **SMALL).module
    torch.save({"model": model.state_dict()}, tmp_path / "w.pth")
    vision_model = vt.load("timm/vit_tiny_patch16_224", checkpoint=tmp_path / "w.pth", img_size=32, **SMALL)
    assert (vision_model.num_classes, vision_model.class_names) == (7, None)
    assert vision_model.module.head.weight.equal(model.head.weight)
    with pytest.raises(CheckpointError, match=r"head\.weight \(7, 24\) for \(9, 24\)"):
        vt.load("timm/vit_tiny_patch16_224", checkpoint=tmp_path / "w.pth", num_classes=9, img_size=32, **SMALL)


def test_a_model_without_classifier_gets_that_of_the_file(tmp_path: Path) -> None:
    """timm's DINOv2 has none by itself."""
    name, options = "timm/vit_small_patch14_dinov2", {"img_size": 28, **SMALL}
    torch.save(vt.load(name, pretrained=False, num_classes=4, **options).module.state_dict(), tmp_path / "w.pth")
    assert vt.load(name, checkpoint=tmp_path / "w.pth", **options).num_classes == 4


def test_torchvision_takes_the_classes_of_the_head(tmp_path: Path) -> None:
    torch.save(get_model("swin_t", num_classes=3).state_dict(), tmp_path / "w.pth")
    assert vt.load("torchvision/swin_t", checkpoint=tmp_path / "w.pth", img_size=64).num_classes == 3


def test_hugging_face_takes_the_classes_of_the_head(tmp_path: Path) -> None:
    """A folder's configuration with five classes, weights of torchvision's with three."""
    MODELS["Hugging Face"]().save_pretrained(tmp_path / "model")
    source = families_torchvision.build(VisionTransformer, **{**families_torchvision.VIT, "num_classes": 3})
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model = vt.load(f"hf/{tmp_path / 'model'}", checkpoint=tmp_path / "w.pth", pretrained=False)
    assert (model.num_classes, model.class_names) == (3, None)
    torch.testing.assert_close(logits(model.module), logits(source), rtol=1e-4, atol=1e-4)


def test_positions_of_another_library_are_resized(tmp_path: Path) -> None:
    source = families_torchvision.build(VisionTransformer, **{**families_torchvision.VIT, "image_size": 64})
    torch.save(source.state_dict(), tmp_path / "w.pth")
    options = {**SMALL, "depth": 3, "mlp_ratio": 2, "patch_size": 8, "img_size": 32}
    model = vt.load("timm/vit_tiny_patch16_224", checkpoint=tmp_path / "w.pth", **options)
    assert model.module.pos_embed.shape == (1, 17, 24)
    assert model.module.pos_embed[:, :1].equal(source.encoder.pos_embedding[:, :1])
