"""Models that look known and are not: the map of a plain model with the same function, or a refusal that says why."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import vitreous as vt
from families import images
from modified_models import METHODS, MORE, SHARES, Adapter, expect_same_or_refused, model, untouched
from vitreous.errors import VitreousError

# -- adapters ------------------------------------------------------------------------------------------

LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


def adapted(layers: tuple[str, ...] = LAYERS) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    odd, reference = model(), model()
    for path, module in list(odd.named_modules()):
        if path.endswith(layers):
            above, _, name = path.rpartition(".")
            setattr(odd.get_submodule(above), name, Adapter(module))
            setattr(reference.get_submodule(above), name, odd.get_submodule(path).merged())
    return odd.eval(), reference.eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adapters_on_every_layer(dtype: torch.dtype) -> None:
    odd, reference = (item.to(dtype) for item in adapted())
    near = 1e-5 if dtype == torch.float64 else 5e-4  # relevance divides by sums that cancel, and lets rounding grow
    assert not expect_same_or_refused(odd, reference, MORE, must=MORE, near=near)
    assert not expect_same_or_refused(odd, reference, must=METHODS)


@pytest.mark.parametrize("layer", LAYERS)
def test_an_adapter_on_one_layer(layer: str) -> None:
    odd, reference = adapted((layer,))
    assert not expect_same_or_refused(odd, reference, (*METHODS, "lrp", "fullgrad"), must=METHODS)


@pytest.mark.parametrize("merge", [False, True])
def test_adapters_of_peft(merge: bool) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["qkv", "proj", "fc1", "fc2"], init_lora_weights=False)
    config.exclude_modules = "patch_embed.proj"
    odd = peft.get_peft_model(model(), config).double().eval()
    reference = copy.deepcopy(odd).merge_and_unload().eval()
    if merge:
        odd.merge_adapter()
    expect_same_or_refused(odd.base_model.model, reference, (*METHODS, "bt_t", "lrp"), must=METHODS)
    expect_same_or_refused(odd, reference, ("attin", "generic"), must=("attin", "generic"))


def test_the_diagnosis_names_adapters() -> None:
    odd, _ = adapted(("attn.proj",))
    diagnosis = vt.diagnose(odd)
    checks = {check.name: check for check in diagnosis.checks}
    assert diagnosis.healthy, diagnosis
    assert "blocks.0.attn.proj has the class" in checks["hooks, adapters and code of its own"].sentence
    assert (
        "Weights there are taken from what each module does" in checks["hooks, adapters and code of its own"].sentence
    )
    assert checks["contributions add up to what attention adds"].verdict == "ok"


# -- hooks ---------------------------------------------------------------------------------------------

PLACES = (
    "", "patch_embed", "patch_embed.proj", "pos_drop", "norm_pre", "blocks", "blocks.1", "blocks.1.norm1",
    "blocks.1.attn", "blocks.1.attn.qkv", "blocks.1.attn.q_norm", "blocks.1.attn.attn_drop", "blocks.1.attn.norm",
    "blocks.1.attn.proj", "blocks.1.attn.proj_drop", "blocks.1.ls1", "blocks.1.drop_path1", "blocks.1.norm2",
    "blocks.1.mlp", "blocks.1.mlp.fc1", "blocks.1.mlp.act", "blocks.1.mlp.drop1", "blocks.1.mlp.norm",
    "blocks.1.mlp.fc2", "blocks.1.ls2", "blocks.1.drop_path2", "norm", "fc_norm", "head_drop", "head",
)  # fmt: skip
"""Every kind of module that timm's ViT is made of."""


@pytest.mark.parametrize("family", ["vit", pytest.param("deit3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", PLACES)
def test_hooks_that_change_nothing(place: str, family: str) -> None:
    """They may be there to look at something, before a module and after it: every map is what it was."""
    odd = model(family)
    part = odd.get_submodule(place)
    calls = []
    part.register_forward_pre_hook(lambda module, args: calls.append(1))
    part.register_forward_hook(lambda module, args, output: calls.append(1))
    assert not expect_same_or_refused(odd, untouched(family), must=METHODS)


def scaled(layer: Any, by: float = 1.5, shift: float = 0.0) -> None:
    with torch.no_grad():
        layer.weight *= by
        if layer.bias is not None:
            layer.bias *= by
            layer.bias += shift


BAKED: dict[str, tuple[str, ...]] = {  # the layer that a factor or a constant after a module can be put into
    "patch_embed.proj": ("patch_embed.proj",),
    "patch_embed": ("patch_embed.proj",),
    "blocks.1.norm1": ("blocks.1.norm1",),
    "blocks.1.attn": ("blocks.1.attn.proj",),
    "blocks.1.attn.qkv": ("blocks.1.attn.qkv",),
    "blocks.1.attn.proj": ("blocks.1.attn.proj",),
    "blocks.1.attn.proj_drop": ("blocks.1.attn.proj",),
    "blocks.1.ls1": ("blocks.1.attn.proj",),
    "blocks.1.drop_path1": ("blocks.1.attn.proj",),
    "blocks.1.norm2": ("blocks.1.norm2",),
    "blocks.1.mlp": ("blocks.1.mlp.fc2",),
    "blocks.1.mlp.fc1": ("blocks.1.mlp.fc1",),
    "blocks.1.mlp.drop2": ("blocks.1.mlp.fc2",),
    "blocks.1.mlp.fc2": ("blocks.1.mlp.fc2",),
    "norm": ("norm",),
    "fc_norm": ("norm",),
    "head": ("head",),
}
WEIGHED = {"blocks.1.attn.proj", "blocks.1.norm2", "blocks.1.norm1", "blocks.1.mlp.fc2", "blocks.1.attn.qkv", "head"}
"""Where nothing has to be refused."""


@pytest.mark.parametrize(("by", "shift"), [(1.5, 0.0), (1.0, 0.7)], ids=["scale", "shift"])
@pytest.mark.parametrize("place", BAKED)
def test_a_hook_that_changes_an_output(place: str, by: float, shift: float) -> None:
    odd, reference = model(), model()
    odd.get_submodule(place).register_forward_hook(lambda module, args, output: output * by + shift)
    for path in BAKED[place]:
        scaled(reference.get_submodule(path), by, shift)
    methods = (*METHODS, "bt_t", "inflow") if place in WEIGHED else METHODS
    refused = expect_same_or_refused(
        odd, reference, methods, must=METHODS if place in WEIGHED else ("generic", "rollout")
    )
    assert not set(refused) - {*SHARES, "inflow"}
    if not shift or BAKED[place] == (place,):  # relevance knows whether a constant is a layer's bias or added later
        expect_same_or_refused(odd, reference, ("lrp",), near=1e-4)  # it adds a millionth to what it divides by


@pytest.mark.parametrize("place", ["blocks.1.attn.proj", "blocks.1.attn.qkv", "blocks.1.mlp.fc2", "head"])
def test_a_hook_that_changes_an_input(place: str) -> None:
    odd, reference = model(), model()
    odd.get_submodule(place).register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
    with torch.no_grad():
        reference.get_submodule(place).weight *= 1.5
    assert not expect_same_or_refused(odd, reference, (*METHODS, "lrp"), must=METHODS)


@pytest.mark.parametrize("place", ["blocks.2", "blocks.2.norm2", "blocks.2.norm1", "blocks.2.mlp", "blocks.2.attn"])
def test_a_hook_that_no_plain_model_has_is_reported_or_harmless(place: str) -> None:
    """The input of a block or a branch is not the stream that it was: what is cut into shares is refused, and why."""
    odd = model()
    odd.get_submodule(place).register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
    x = images(odd, 1)
    for spec in (*SHARES, "inflow"):
        if place == "blocks.2":
            with pytest.raises(VitreousError, match=r"block 2 .* \(a forward pre-hook at blocks\.2"):
                vt.get_method(spec).attribute(odd, x, target=1)
        else:
            assert torch.isfinite(vt.get_method(spec).attribute(odd, x, target=1)).all()


@pytest.mark.parametrize("place", ["blocks.2", "blocks.2.attn"])
def test_an_output_that_is_no_sum_of_shares(place: str) -> None:
    odd = model()
    odd.get_submodule(place).register_forward_hook(lambda module, args, output: output.tanh())
    for spec in SHARES:
        with pytest.raises(VitreousError, match=rf"block 2 .*a forward hook at {place}"):
            vt.get_method(spec).attribute(odd, images(odd, 1), target=1)
    failed = {check.name: check for check in vt.diagnose(odd).methods}
    assert failed["attin"].verdict == "failed"
    assert "a forward hook" in failed["attin"].sentence
    assert failed["generic"].verdict == "ok"


def test_a_projection_that_is_not_affine_is_refused() -> None:
    odd = model()
    odd.blocks[2].attn.proj.register_forward_hook(lambda module, args, output: output.relu())
    with pytest.raises(VitreousError, match="block 2: Linear with a forward hook does not compute what is linear"):
        vt.get_method("attin").attribute(odd, images(odd, 1), target=1)
    checks = {check.name: check for check in vt.diagnose(odd).checks}
    assert checks["contributions add up to what attention adds"].verdict == "failed"


def test_a_projection_that_mixes_tokens_is_refused() -> None:
    odd = model()
    odd.blocks[2].attn.proj.register_forward_hook(
        lambda module, args, output: output - output.mean(dim=1, keepdim=True)
    )
    with pytest.raises(VitreousError, match="does not compute what is linear"):
        vt.get_method("attin").attribute(odd, images(odd, 1), target=1)


def test_a_hook_on_all_modules() -> None:
    odd, x = model(), images(model(), 1)
    expected = vt.get_method("attin").attribute(odd, x, target=1)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: output * 2 if module is odd.blocks[2].attn.proj or odd is None else None
    )
    try:  # it knows the user's module and never meets a copy of it
        with pytest.raises(VitreousError, match="computes something else than its parts"):
            vt.get_method("attin").attribute(odd, x, target=1)
    finally:
        handle.remove()
    assert torch.equal(vt.get_method("attin").attribute(odd, x, target=1), expected)


# -- parametrizations, wrappers, own norms -------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class InDouble(nn.Module):
    """A cast around a layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.double()).to(x)


class WideNorm(nn.LayerNorm):
    """A norm with another divisor than its ``eps`` says."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, 0.5)


PARAMETRIZED: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "own": lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    "weight_norm by hooks": nn.utils.weight_norm,
    "cast": InDouble,
}


@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_parametrizations_and_casts(kind: str) -> None:
    torch.manual_seed(0)
    odd, reference = (model().float() if kind == "cast" else model() for _ in range(2))
    for block, other in zip(odd.blocks, reference.blocks, strict=True):
        for owner, copied, name in ((block.attn, other.attn, "proj"), (block.mlp, other.mlp, "fc2")):
            layer = PARAMETRIZED[kind](getattr(owner, name)).eval()
            setattr(owner, name, layer)
            with torch.no_grad():
                layer(torch.zeros(1, getattr(copied, name).in_features).to(getattr(copied, name).weight))
                weight = layer.inner.weight if kind == "cast" else layer.weight
                getattr(copied, name).weight.copy_(weight)
    assert not expect_same_or_refused(odd, reference, (*METHODS, "bt_t"), must=METHODS)


def test_a_norm_that_divides_by_something_else() -> None:
    odd, reference = model(), model()
    odd.blocks[1].norm2.__class__ = WideNorm
    reference.blocks[1].norm2.eps = 0.5
    assert not expect_same_or_refused(odd, reference, must=METHODS)


class Squashed(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


def test_a_norm_that_is_none_is_refused() -> None:
    odd = model()
    odd.blocks[1].norm2.__class__ = Squashed
    with pytest.raises(VitreousError, match=r"Squashed with the class .*Squashed does not compute what is a LayerNorm"):
        vt.get_method("globenc").attribute(odd, images(odd, 1), target=1)


@pytest.mark.parametrize("factor", ["scale", "mask"])
def test_attention_of_ones_own(factor: str) -> None:
    """Another scale and a mask are seen where they act; weights changed after the softmax are refused."""
    odd, reference = model(), model()
    attn, x = odd.blocks[2].attn, images(odd, 1)

    def forward(self: Any, x: Tensor, **options: Any) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attention = (q @ k.transpose(-2, -1) * self.scale * (2.0 if factor == "scale" else 1.0)).softmax(dim=-1)
        if factor == "mask":
            attention = attention * (torch.arange(tokens) % 2 == 0)
        return self.proj((attention @ v).transpose(1, 2).reshape(batch, tokens, width))

    attn.forward = forward.__get__(attn)
    if factor == "mask":
        for spec in ("rollout", "generic", "attin"):
            with pytest.raises(VitreousError, match="block 2 changes its attention weights after their softmax"):
                vt.get_method(spec).attribute(odd, x, target=1)
        return
    with torch.no_grad():
        reference.blocks[2].attn.qkv.weight[: odd.embed_dim] *= 2
        reference.blocks[2].attn.qkv.bias[: odd.embed_dim] *= 2
    assert not expect_same_or_refused(odd, reference, must=METHODS)


class OtherPositions(VisionTransformer):
    def _pos_embed(self, x: Tensor) -> Tensor:
        return super()._pos_embed(x) * 1.5


def test_positions_of_ones_own() -> None:
    odd, reference = model(), model()
    odd.__class__ = OtherPositions
    with torch.no_grad():
        for item in (
            reference.pos_embed,
            reference.cls_token,
            reference.patch_embed.proj.weight,
            reference.patch_embed.proj.bias,
        ):
            item *= 1.5
    assert not expect_same_or_refused(odd, reference, must=METHODS)
