"""Views of Hugging Face models against transformers itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers as hf

import vitreous as vt
from families_hf import FAMILIES, LABELS, build, images
from vitreous.errors import ModelError
from vitreous.models import Preprocess, VisionModel
from vitreous.tracing import Context, Pass, Record, Target, activation_grad, activation_value
from vitreous.tracing.records import ActivationCache
from vitreous.tracing.rules import GRADIENT, LINEARIZED, Composite

#        depth, prefix tokens, grid, pooling
FACTS = {
    "hf_vit": (3, 1, (4, 4), "token"),
    "hf_vit_eager": (3, 1, (4, 4), "token"),
    "hf_deit": (3, 2, (4, 4), "token"),
    "hf_deit_teacher": (3, 2, (4, 4), "pair"),
    "hf_dinov2": (3, 1, (4, 4), "token_avg"),
    "hf_dinov2_registers": (3, 5, (4, 4), "token_avg"),
    "hf_swin": (3, 0, (8, 8), "avg"),
    "hf_clip": (3, 1, (4, 4), "token"),
    "hf_siglip": (3, 0, (4, 4), "map"),
}
COLUMNS = [name for name in FAMILIES if name != "hf_swin"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def look(family: str) -> VisionModel:
    return vt.wrap(FAMILIES[family]())


def own(model: Any, inputs: Tensor, **more: Any) -> Tensor:
    """The logits of the model's own forward; those of image-text models from its own image features."""
    with torch.no_grad():
        if not hasattr(model, "text"):
            return model.module(inputs, **more).logits
        result = model.module.get_image_features(pixel_values=inputs, **more)
        result = result if isinstance(result, Tensor) else result.pooler_output
        logits = model.module.logit_scale.exp() * nn.functional.normalize(result, dim=-1) @ model.text.T
        return logits + getattr(model.module, "logit_bias", 0)


def trace(
    model: VisionModel, *keeps: Record, rules: Composite = GRADIENT, dtype: torch.dtype = torch.float32
) -> ActivationCache:
    return Context(model, images(2, dtype=dtype), Target.of(model, 2, 1)).run_pass(Pass(keeps, rules))


# -- the three verbs -----------------------------------------------------------------------------------


def test_every_family_is_looked_at() -> None:
    assert FACTS.keys() == FAMILIES.keys()


@torch.no_grad()
def test_split_at_every_layer_is_the_model(family: str) -> None:
    model, inputs = look(family), images(3)
    expected = own(model, inputs)
    torch.testing.assert_close(model.logits(inputs), expected, rtol=0, atol=1e-6)
    for layer in range(model.depth + 1):
        head = model.forward_blocks(model.embed(inputs), 0, layer)
        torch.testing.assert_close(model.forward_head(model.forward_blocks(head, layer)), expected, rtol=0, atol=1e-6)
        if layer < model.depth:
            remaining = model.suffix(layer)
            remaining.check_inputs(head)
            assert remaining.grid() == model.grid(layer=layer)
            torch.testing.assert_close(remaining.logits(head), expected, rtol=0, atol=1e-6)


def test_facts(family: str) -> None:
    model = look(family)
    assert (model.depth, model.num_prefix_tokens, model.grid(), model.pooling.kind) == FACTS[family]
    assert (model.embed_dim, model.num_heads, model.num_classes) == (24, 3, 5)
    assert model.class_names == (LABELS if family in ("hf_clip", "hf_siglip") else None)
    assert (model.family, model.preprocess.size) == ("hf", (32, 32))
    assert (model.attention == "windowed") == (not model.can_drop_tokens) == (family == "hf_swin")
    assert vt.wrap(model) is model


@torch.no_grad()
@pytest.mark.parametrize("family", COLUMNS)
def test_leaving_patches_out(family: str) -> None:
    """All patches in any order change nothing; some are what the layers make of those tokens."""
    model, inputs = look(family), images(2)
    shuffled = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(s)) for s in (1, 2)])
    torch.testing.assert_close(model.logits(inputs, keep=shuffled), own(model, inputs), rtol=0, atol=1e-5)
    keep = torch.tensor([[0, 5, 7], [11, 2, 3]])
    tokens = model.embed(inputs)
    rows = [[*range(model.num_prefix_tokens), *(model.num_prefix_tokens + k for k in row)] for row in keep.tolist()]
    picked = torch.stack([tokens[i, row] for i, row in enumerate(rows)])
    expected = model.forward_head(model.forward_blocks(picked))
    torch.testing.assert_close(model.logits(inputs, keep=keep), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(expected, own(model, inputs), atol=1e-4)


@torch.no_grad()
def test_embedding_and_distilled_head_by_hand() -> None:
    model: Any = FAMILIES["hf_deit_teacher"]()
    vision_model, inputs, part = vt.wrap(model), images(2), model.deit.embeddings
    patches = part.patch_embeddings.projection(inputs).flatten(2).transpose(1, 2)
    prefix = [part.cls_token.expand(2, -1, -1), part.distillation_token.expand(2, -1, -1)]
    torch.testing.assert_close(
        vision_model.embed(inputs), torch.cat([*prefix, patches], dim=1) + part.position_embeddings
    )


def test_swin_is_hierarchical() -> None:
    model = look("hf_swin")
    assert model.stages == (range(0, 2), range(2, 3))
    assert [model.grid(layer=layer) for layer in range(3)] == [(8, 8), (8, 8), (4, 4)]
    assert model.cam_point == "norm2"
    with pytest.raises(ModelError, match="cannot leave tokens out"):
        model.logits(images(1), keep=torch.tensor([[0]]))
    for method in ("globenc", "attention_flow"):
        with pytest.raises(ModelError, match="attends inside windows"):
            vt.get_method(method).attribute(model, images(1))
    deeper = trace(model, keep := Record("resid_pre", activation_value, (0, 1, 2), grad=False))
    assert [tuple(item.shape[1:]) for item in deeper[keep]] == [(64, 24), (64, 24), (16, 48)]


@pytest.mark.parametrize("make", ["CLIP", "Siglip"])
def test_towers_with_a_classifier(make: str) -> None:
    model = vt.wrap(build(f"{make}ForImageClassification", f"{make}Config"))
    assert (model.pooling.kind, model.num_prefix_tokens, model.num_classes) == ("avg", int(make == "CLIP"), 5)
    torch.testing.assert_close(model.logits(images(2)), own(model, images(2)), rtol=0, atol=1e-6)
    for method in ("decompx", "generic", "gradcam"):
        assert torch.isfinite(vt.get_method(method).attribute(model, images(2), target=1)).all()


@pytest.mark.parametrize("size", [(32, 48), (48, 32)])
def test_rectangular_images(size: tuple[int, int]) -> None:
    model = build("ViTForImageClassification", "ViTConfig", image_size=size, patch_size=(8, 16))
    vision_model, inputs = vt.wrap(model), torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    assert vision_model.grid() == (size[0] // 8, size[1] // 16)
    torch.testing.assert_close(vision_model.logits(inputs), own(vision_model, inputs), rtol=0, atol=1e-6)
    assert vt.get_method("generic").attribute(vision_model, inputs).shape == (1, *vision_model.grid())


@pytest.mark.parametrize("family", ["hf_vit", "hf_deit", "hf_siglip", "hf_clip"])
def test_other_sizes_interpolate_positions_as_the_model_does(family: str) -> None:
    model, inputs = look(family), torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match=r"takes images \[B, 3, 32, 32\]"):
        vt.get_method("ixg").attribute(model, inputs)
    more = {"text_embeds": model.text} if hasattr(model, "text") else {}
    larger = vt.wrap(model.module, preprocess=Preprocess(size=(48, 48)), **more)
    assert larger.grid() == (6, 6)
    expected = own(larger, inputs, interpolate_pos_encoding=True)
    torch.testing.assert_close(larger.logits(inputs), expected, rtol=0, atol=1e-6)


def test_dinov2_takes_any_whole_patches() -> None:
    model, inputs = look("hf_dinov2"), torch.randn(1, 3, 48, 40, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits(inputs), own(model, inputs), rtol=0, atol=1e-6)
    assert vt.get_method("generic").attribute(model, inputs).shape == (1, 6, 5)
    with pytest.raises(ModelError, match="cannot be cut into patches"):
        vt.get_method("generic").attribute(model, inputs[..., :39])


# -- what passes see -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["hf_vit", "hf_deit_teacher", "hf_dinov2", "hf_clip", "hf_siglip"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_and_its_gradient_are_the_models_own(family: str, attention: str) -> None:
    """Against ``output_attentions=True`` of the same weights with written-out attention."""
    built, changed = FAMILIES[family].args[:2], FAMILIES[family].keywords
    slow, model = (build(*built, attention=item, **changed) for item in ("eager", attention))
    keeps = [
        Record("attn_weights", activation_grad if grad else activation_value, (0, 1, 2), grad) for grad in (False, True)
    ]
    if family in ("hf_clip", "hf_siglip"):
        text = torch.randn(5, FAMILIES[family].args[2], generator=torch.Generator().manual_seed(6))
        if attention == "eager" and hasattr(model.vision_model.encoder.layers[0].self_attn, "_shape"):
            with pytest.raises(ModelError, match="of this old transformers"):  # an older CLIP folds heads into images
                vt.wrap(model, text_embeds=text)
            return
        vision_model = vt.wrap(model, text_embeds=text)
        out = slow.vision_model(images(2), output_attentions=True)
        result = out.pooler_output if family == "hf_siglip" else slow.visual_projection(out.pooler_output)
        score = slow.logit_scale.exp() * nn.functional.normalize(result, dim=-1) @ vision_model.text.T
    else:
        vision_model = vt.wrap(model)
        out = slow(images(2), output_attentions=True)
        score = out.logits
    if out.attentions is None:
        pytest.skip("this version of transformers does not hand out its attention")
    seen = trace(vision_model, *keeps)
    gradients = torch.autograd.grad(score[:, 1].sum(), out.attentions)
    for layer in range(3):
        torch.testing.assert_close(seen[keeps[0]][layer], out.attentions[layer], rtol=0, atol=1e-5)
        torch.testing.assert_close(seen[keeps[1]][layer], gradients[layer], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_values_are_the_output_of_the_value_projection(attention: str, dtype: torch.dtype) -> None:
    model = build("ViTForImageClassification", "ViTConfig", attention=attention).to(dtype)
    layers = [m for name, m in model.named_modules() if name.endswith(("attention.v_proj", "attention.value"))]
    projected: list[Tensor] = []
    handles = [layer.register_forward_hook(lambda m, a, out: projected.append(out)) for layer in layers]
    vt.wrap(model).verify(images(2, dtype=dtype))
    vt.wrap(model).operation_counts(0)
    projected.clear()
    values, gradients = (
        Record("attn_values", activation_grad if grad else activation_value, (0, 1, 2), grad) for grad in (False, True)
    )
    seen = trace(vt.wrap(model), values, gradients, dtype=dtype)
    for handle in handles:
        handle.remove()
    for layer in range(3):
        expected = projected[layer].detach().view(2, 17, 3, 8).transpose(1, 2)
        torch.testing.assert_close(seen[values][layer], expected)
        assert torch.isfinite(seen[gradients][layer]).all()


def test_branches_add_up_to_the_residual_stream(family: str) -> None:
    """input + attn + mlp = output, LayerScale included; Swin's stages end with a merging."""
    model = look(family)
    ends = {stage.stop - 1 for stage in model.stages[:-1]}
    layers = tuple(layer for layer in range(model.depth) if layer not in ends)
    keeps = {
        point: Record(point, activation_value, layers, grad=False)
        for point in ("resid_pre", "norm1", "attn", "norm2", "mlp", "resid_post")
    }
    seen = trace(model, *keeps.values())
    for i, layer in enumerate(layers):
        value = {point: seen[keep][i] for point, keep in keeps.items()}
        middle = value["resid_pre"] + value["attn"]
        torch.testing.assert_close(middle + value["mlp"], value["resid_post"])
        torch.testing.assert_close(model.hook_point(layer, "norm1")(value["resid_pre"]), value["norm1"])
        torch.testing.assert_close(model.hook_point(layer, "norm2")(middle), value["norm2"])


def test_the_frozen_pass_leaves_the_logits_alone(family: str) -> None:
    """Bit for bit, and every declared call was met; the pooling of SigLIP is written out, so not bit for bit there."""
    model = look(family)
    seen = trace(model, Record("resid_pre", activation_grad, (0,)), rules=LINEARIZED)
    expected = model.logits(images(2))
    if family == "hf_siglip":
        torch.testing.assert_close(seen.logits, expected, rtol=0, atol=1e-6)
    else:
        assert torch.equal(seen.logits, expected)


def test_the_pooling_of_siglip_is_seen() -> None:
    model = look("hf_siglip")
    keep = Record("pool_weights", activation_value, grad=False)
    seen = trace(model, keep)[keep][0]
    head = model.module.vision_model.head
    with torch.no_grad():
        tokens = model.module.vision_model.post_layernorm(model.forward_blocks(model.embed(images(2))))
        probe = head.probe.repeat(2, 1, 1)
        expected = head.attention(probe, tokens, tokens, average_attn_weights=False)[1]
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize("method", ["decompx", "generic", "rollout", "ixg", "gradcam", "saliency", "skipplus(ixg)"])
def test_methods_run_and_leave_the_model_alone(family: str, method: str) -> None:
    model = look(family)
    if model.stages and method == "skipplus(ixg)":
        pytest.skip("needs several blocks of one grid")
    model.module.train()
    result = vt.get_method(method).attribute(model, images(2), target=1)
    assert torch.isfinite(result).all()
    assert result.flatten(1).std(dim=1).min() > 0
    assert all(module.training for module in model.module.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules() if not m._modules)
    assert all(parameter.grad is None for parameter in model.module.parameters())


@pytest.mark.parametrize("family", ["hf_vit", "hf_swin", "hf_clip"])
def test_gradient_checkpointing_is_no_obstacle(family: str) -> None:
    model = look(family)
    reference = {name: vt.get_method(name).attribute(model, images(2), target=1) for name in ("ixg", "decompx")}
    model.module.train()
    model.module.gradient_checkpointing_enable()
    for name, expected in reference.items():
        torch.testing.assert_close(vt.get_method(name).attribute(model, images(2), target=1), expected)


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
def test_a_gated_mlp_is_a_gate(kind: str) -> None:
    model = vt.wrap(build(f"{kind}ForImageClassification", f"{kind}Config", use_swiglu_ffn=True))
    assert model.operation_counts(0)["gate"] == 1
    torch.testing.assert_close(model.logits(images(2)), own(model, images(2)), rtol=0, atol=1e-6)
    assert torch.isfinite(vt.get_method("decompx").attribute(model, images(2))).all()


def test_an_activation_nobody_knows_is_loud() -> None:
    model = vt.wrap(build("ViTForImageClassification", "ViTConfig", hidden_act="gelu_new"))
    with pytest.raises(vt.VitreousError, match="saw 0 activation calls in block 0"):
        vt.get_method("decompx").attribute(model, images(1))


@pytest.mark.parametrize("kind", ["flash_attention_2", "flex_attention", "paged|sdpa"])
def test_attention_that_cannot_be_observed_is_refused(kind: str) -> None:
    model: Any = FAMILIES["hf_vit"]()
    vision_model = vt.wrap(model)
    model.config._attn_implementation_internal = kind
    for refuse in (lambda: vt.wrap(model), lambda: vt.get_method("ixg").attribute(vision_model, images(1))):
        with pytest.raises(ModelError) as caught:
            refuse()
        assert kind in str(caught.value)
        assert 'attn_implementation="sdpa"' in str(caught.value)


def test_models_without_a_view_are_named() -> None:
    config = hf.ViTConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=3, image_size=32, patch_size=8)
    with pytest.raises(ModelError, match="ViTModel is not supported; supported: ViTForImageClassification"):
        vt.wrap(hf.ViTModel(config))
    config.num_labels = 0
    with pytest.raises(ModelError, match="no classifier"):
        vt.wrap(hf.ViTForImageClassification(config))


def test_subclasses_are_known() -> None:
    class Mine(hf.ViTForImageClassification):
        pass

    model: Any = FAMILIES["hf_vit"]()
    model.__class__ = Mine
    assert vt.wrap(model).num_classes == 5


@pytest.mark.parametrize("spec", ["lrp_rollout", "transatt"])
def test_rules_that_sum_over_an_image_keep_siglip_images_apart(spec: str) -> None:
    """Its logits come with classes first, and a bias is added to them."""
    model, x = look("hf_siglip"), images(3)
    together = vt.get_method(spec).attribute(model, x, target=1)
    for i, result in enumerate(together):
        (alone,) = vt.get_method(spec).attribute(model, x[i : i + 1], target=1)
        assert torch.allclose(result, alone, atol=1e-5 * float(alone.abs().max()))
