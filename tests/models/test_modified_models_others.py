"""Models that look known and are not, in other libraries and families than timm's plain ViT."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import images
from modified_models import METHODS, MORE, Adapter, expect_same_or_refused, model
from vitreous.errors import VitreousError
from zoo import EVERY

pytestmark = pytest.mark.slow

PROJECTIONS = {
    "deit3": ("attn.proj", "ls1", "ls2", "norm2"),
    "registers": ("attn.proj", "ls1", "ls2", "norm1"),
    "qk_norm": ("attn.proj", "attn.norm", "attn.q_norm", "norm2"),
    "beit": ("attn.proj", "norm2", "drop_path1"),
    "eva": ("attn.proj", "norm2", "drop_path2"),
    "hf_vit": ("o_proj", "output.dense", "layernorm_after"),
    "hf_dinov2": ("o_proj", "output.dense", "layer_scale1", "norm2"),
    "tv_vit": ("mlp.0", "ln_2", "self_attention", "out_proj"),
}


@pytest.mark.parametrize("hook", ["nothing", "scale"])
@pytest.mark.parametrize("family", PROJECTIONS)
def test_hooks_in_other_families(family: str, hook: str) -> None:
    """A hook that scales a linear layer, a norm or a LayerScale, baked into its parameters or refused."""
    if family not in EVERY:
        pytest.skip("its library is not installed")

    def change(module: nn.Module, args: Any, output: Any) -> Any:
        if hook == "nothing":
            return None
        return 1.5 * output if isinstance(output, Tensor) else (1.5 * output[0], *output[1:])

    for ending in PROJECTIONS[family]:
        odd, reference = model(family), model(family)
        paths = [path for path, _ in odd.named_modules() if path.endswith(f".{ending}")]
        if not paths:
            continue
        path = paths[1 % len(paths)]
        odd.get_submodule(path).register_forward_hook(change)
        part = reference.get_submodule(path)
        if hook == "scale" and ending == "self_attention":
            part = part.out_proj
        baked = ending != "out_proj" and not ending.startswith("drop_path")  # torchvision's is read, and never run
        if hook == "scale" and baked:
            with torch.no_grad():
                for parameter in part.parameters(recurse=False):
                    parameter *= 1.5
        if hook == "scale" and ending.startswith("drop_path"):
            for spec in ("globenc", "alti", "vtranm"):
                with pytest.raises(VitreousError, match=ending):
                    vt.get_method(spec).attribute(odd, images(odd, 1), target=1)
            continue
        refused = expect_same_or_refused(odd, reference, must=("generic", "rollout", "decompx"))
        assert hook == "scale" or not refused, (path, refused)


@pytest.mark.parametrize("family", ["hf_vit", "tv_vit", "hf_dinov2", "beit", "eva", "deit3"])
def test_adapters_in_other_families(family: str) -> None:
    if family not in EVERY:
        pytest.skip("its library is not installed")
    torch.manual_seed(0)
    odd, reference = model(family), model(family)
    skipped = ("out_proj", "head", "classifier", "heads.head", "qkv")  # read by the model, or a head of its own
    for path, module in list(odd.named_modules()):
        if isinstance(module, nn.Linear) and not path.endswith(skipped):
            above, _, name = path.rpartition(".")
            setattr(odd.get_submodule(above), name, Adapter(module))
            setattr(reference.get_submodule(above), name, odd.get_submodule(path).merged())
    assert not expect_same_or_refused(odd.eval(), reference.eval(), (*METHODS, "bt_t", "lrp"), must=METHODS)


@pytest.mark.parametrize("family", ["hf_vit", "hf_dinov2"])
def test_adapters_of_peft_in_hugging_face(family: str) -> None:
    peft = pytest.importorskip("peft")
    if family not in EVERY:
        pytest.skip("its library is not installed")
    torch.manual_seed(0)
    names = {path.rpartition(".")[2] for path, m in model(family).named_modules() if isinstance(m, nn.Linear)}
    config = peft.LoraConfig(r=2, target_modules=sorted(names - {"classifier"}), init_lora_weights=False)
    odd = peft.get_peft_model(model(family), config).double().eval()
    reference = copy.deepcopy(odd).merge_and_unload().eval()
    expect_same_or_refused(odd.base_model.model, reference, (*METHODS, "bt_t"), must=METHODS)


@pytest.mark.parametrize("family", ["hf_vit", "tv_vit", "swin", "beit"])
def test_an_average_in_a_subclass_of_other_families(family: str) -> None:
    if family not in EVERY:
        pytest.skip("its library is not installed")
    odd = model(family)
    vision_model = vt.wrap(odd)
    vision_model.verify(images(vision_model, 1))
    before = vision_model.pooling
    odd.__class__ = type("Mine", (type(odd),), {"__module__": __name__})
    vision_model.verify(images(vision_model, 1))
    assert vision_model.pooling.kind == before.kind
    assert "the class" in vision_model.deviations[""]


@pytest.mark.parametrize("family", ["gap", "siglip", "swiglu", "clip"])
@pytest.mark.parametrize("layer", ["attn.proj", "attn.qkv"])
def test_an_adapter_in_other_vits(family: str, layer: str) -> None:
    torch.manual_seed(0)
    odd, reference = model(family), model(family)
    for block, other in zip(odd.blocks, reference.blocks, strict=True):
        name = layer.rpartition(".")[2]
        setattr(block.attn, name, Adapter(getattr(block.attn, name)))
        setattr(other.attn, name, getattr(block.attn, name).merged())
    assert not expect_same_or_refused(odd.eval(), reference.eval(), MORE, must=METHODS)
