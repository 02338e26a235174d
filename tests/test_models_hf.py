"""Views of Hugging Face models against transformers itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers as hf

import vitreous as vt
from families_hf import FAMILIES, LABELS, build, images
from vitreous.errors import ModelError
from vitreous.models import Preprocess, View, hub
from vitreous.models.hf_load import preprocess_of
from vitreous.passes import Keep, Pass, Session, Target, whole
from vitreous.passes.trace import Trace

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
PLAIN = [name for name in FAMILIES if name != "hf_swin"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def look(family: str) -> View:
    return vt.view(FAMILIES[family]())


def own(view: Any, inputs: Tensor, **more: Any) -> Tensor:
    """The logits of the model's own forward; those of image-text models from its own image features."""
    with torch.no_grad():
        if not hasattr(view, "text"):
            return view.model(inputs, **more).logits
        found = view.model.get_image_features(pixel_values=inputs, **more)
        found = found if isinstance(found, Tensor) else found.pooler_output
        logits = view.model.logit_scale.exp() * nn.functional.normalize(found, dim=-1) @ view.text.T
        return logits + getattr(view.model, "logit_bias", 0)


def trace(view: View, *keeps: Keep, rules: str = "plain", dtype: torch.dtype = torch.float32) -> Trace:
    return Session(view, images(2, dtype=dtype), Target.of(view, 2, 1)).trace(Pass(keeps, rules))


# -- the three verbs -----------------------------------------------------------------------------------


def test_every_family_is_looked_at() -> None:
    assert FACTS.keys() == FAMILIES.keys()


@torch.no_grad()
def test_split_at_every_layer_is_the_model(family: str) -> None:
    view, inputs = look(family), images(3)
    expected = own(view, inputs)
    torch.testing.assert_close(view.logits(inputs), expected, rtol=0, atol=1e-6)
    for layer in range(view.depth + 1):
        head = view.run(view.embed(inputs), 0, layer)
        torch.testing.assert_close(view.finish(view.run(head, layer)), expected, rtol=0, atol=1e-6)
        if layer < view.depth:
            rest = view.suffix(layer)
            rest.check_inputs(head)
            assert rest.grid() == view.grid(layer=layer)
            torch.testing.assert_close(rest.logits(head), expected, rtol=0, atol=1e-6)


def test_facts(family: str) -> None:
    view = look(family)
    assert (view.depth, view.prefix, view.grid(), view.pooling.kind) == FACTS[family]
    assert (view.width, view.heads, view.classes) == (24, 3, 5)
    assert view.labels == (LABELS if family in ("hf_clip", "hf_siglip") else None)
    assert (view.family, view.preprocess.size) == ("hf", (32, 32))
    assert view.windowed == (not view.drops_tokens) == (family == "hf_swin")
    assert vt.view(view) is view


@torch.no_grad()
@pytest.mark.parametrize("family", PLAIN)
def test_leaving_patches_out(family: str) -> None:
    """All patches in any order change nothing; some are what the layers make of those tokens."""
    view, inputs = look(family), images(2)
    shuffled = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(s)) for s in (1, 2)])
    torch.testing.assert_close(view.logits(inputs, keep=shuffled), own(view, inputs), rtol=0, atol=1e-5)
    keep = torch.tensor([[0, 5, 7], [11, 2, 3]])
    tokens = view.embed(inputs)
    rows = [[*range(view.prefix), *(view.prefix + k for k in row)] for row in keep.tolist()]
    picked = torch.stack([tokens[i, row] for i, row in enumerate(rows)])
    expected = view.finish(view.run(picked))
    torch.testing.assert_close(view.logits(inputs, keep=keep), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(expected, own(view, inputs), atol=1e-4)


@torch.no_grad()
def test_embedding_and_distilled_head_by_hand() -> None:
    model: Any = FAMILIES["hf_deit_teacher"]()
    view, inputs, part = vt.view(model), images(2), model.deit.embeddings
    patches = part.patch_embeddings.projection(inputs).flatten(2).transpose(1, 2)
    prefix = [part.cls_token.expand(2, -1, -1), part.distillation_token.expand(2, -1, -1)]
    torch.testing.assert_close(view.embed(inputs), torch.cat([*prefix, patches], dim=1) + part.position_embeddings)


def test_swin_is_hierarchical() -> None:
    view = look("hf_swin")
    assert view.stages == (range(0, 2), range(2, 3))
    assert [view.grid(layer=layer) for layer in range(3)] == [(8, 8), (8, 8), (4, 4)]
    assert view.cam_site == "norm2"
    with pytest.raises(ModelError, match="cannot leave tokens out"):
        view.logits(images(1), keep=torch.tensor([[0]]))
    for method in ("rollout", "generic"):
        with pytest.raises(ModelError, match="attends inside windows"):
            vt.method(method).attribute(view, images(1))
    deeper = trace(view, keep := Keep("input", whole, (0, 1, 2)))
    assert [tuple(each.shape[1:]) for each in deeper[keep]] == [(64, 24), (64, 24), (16, 48)]


@pytest.mark.parametrize("make", ["CLIP", "Siglip"])
def test_towers_with_a_classifier(make: str) -> None:
    view = vt.view(build(f"{make}ForImageClassification", f"{make}Config"))
    assert (view.pooling.kind, view.prefix, view.classes) == ("avg", int(make == "CLIP"), 5)
    torch.testing.assert_close(view.logits(images(2)), own(view, images(2)), rtol=0, atol=1e-6)
    for method in ("decompx", "generic", "gradcam"):
        assert torch.isfinite(vt.method(method).attribute(view, images(2), target=1)).all()


@pytest.mark.parametrize("size", [(32, 48), (48, 32)])
def test_rectangular_images(size: tuple[int, int]) -> None:
    model = build("ViTForImageClassification", "ViTConfig", image_size=size, patch_size=(8, 16))
    view, inputs = vt.view(model), torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    assert view.grid() == (size[0] // 8, size[1] // 16)
    torch.testing.assert_close(view.logits(inputs), own(view, inputs), rtol=0, atol=1e-6)
    assert vt.method("generic").attribute(view, inputs).shape == (1, *view.grid())


@pytest.mark.parametrize("family", ["hf_vit", "hf_deit", "hf_siglip", "hf_clip"])
def test_other_sizes_interpolate_positions_as_the_model_does(family: str) -> None:
    view, inputs = look(family), torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match=r"takes images \[B, 3, 32, 32\]"):
        vt.method("ixg").attribute(view, inputs)
    more = {"text_embeds": view.text} if hasattr(view, "text") else {}
    larger = vt.view(view.model, preprocess=Preprocess(size=(48, 48)), **more)
    assert larger.grid() == (6, 6)
    expected = own(larger, inputs, interpolate_pos_encoding=True)
    torch.testing.assert_close(larger.logits(inputs), expected, rtol=0, atol=1e-6)


def test_dinov2_takes_any_whole_patches() -> None:
    view, inputs = look("hf_dinov2"), torch.randn(1, 3, 48, 40, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(view.logits(inputs), own(view, inputs), rtol=0, atol=1e-6)
    assert vt.method("generic").attribute(view, inputs).shape == (1, 6, 5)
    with pytest.raises(ModelError, match="cannot be cut into patches"):
        vt.method("generic").attribute(view, inputs[..., :39])


# -- what passes see -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["hf_vit", "hf_deit_teacher", "hf_dinov2", "hf_clip", "hf_siglip"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_and_its_gradient_are_the_models_own(family: str, attention: str) -> None:
    """Against ``output_attentions=True`` of the same weights with written-out attention."""
    made, changed = FAMILIES[family].args[:2], FAMILIES[family].keywords
    slow, model = (build(*made, attention=each, **changed) for each in ("eager", attention))
    keeps = [Keep("attention", whole, (0, 1, 2), grad) for grad in (False, True)]
    if family in ("hf_clip", "hf_siglip"):
        text = torch.randn(5, FAMILIES[family].args[2], generator=torch.Generator().manual_seed(6))
        view = vt.view(model, text_embeds=text)
        out = slow.vision_model(images(2), output_attentions=True)
        found = out.pooler_output if family == "hf_siglip" else slow.visual_projection(out.pooler_output)
        score = slow.logit_scale.exp() * nn.functional.normalize(found, dim=-1) @ view.text.T
    else:
        view = vt.view(model)
        out = slow(images(2), output_attentions=True)
        score = out.logits
    if out.attentions is None:
        pytest.skip("this version of transformers does not hand out its attention")
    seen = trace(view, *keeps)
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
    values, gradients = (Keep("values", whole, (0, 1, 2), grad) for grad in (False, True))
    seen = trace(vt.view(model), values, gradients, dtype=dtype)
    for handle in handles:
        handle.remove()
    for layer in range(3):
        expected = projected[layer].detach().view(2, 17, 3, 8).transpose(1, 2)
        torch.testing.assert_close(seen[values][layer], expected)
        assert torch.isfinite(seen[gradients][layer]).all()


def test_branches_add_up_to_the_residual_stream(family: str) -> None:
    """input + attn + mlp = output, LayerScale included; Swin's stages end with a merging."""
    view = look(family)
    ends = {stage.stop - 1 for stage in view.stages[:-1]}
    layers = tuple(layer for layer in range(view.depth) if layer not in ends)
    keeps = {site: Keep(site, whole, layers) for site in ("input", "norm1", "attn", "norm2", "mlp", "output")}
    seen = trace(view, *keeps.values())
    for i, layer in enumerate(layers):
        value = {site: seen[keep][i] for site, keep in keeps.items()}
        middle = value["input"] + value["attn"]
        torch.testing.assert_close(middle + value["mlp"], value["output"])
        torch.testing.assert_close(view.site(layer, "norm1")(value["input"]), value["norm1"])
        torch.testing.assert_close(view.site(layer, "norm2")(middle), value["norm2"])


def test_the_frozen_pass_leaves_the_logits_alone(family: str) -> None:
    """Bit for bit, and every declared call was met; the pooling of SigLIP is written out, so not bit for bit there."""
    view = look(family)
    seen = trace(view, Keep("input", whole, (0,), grad=True), rules="frozen")
    expected = view.logits(images(2))
    if family == "hf_siglip":
        torch.testing.assert_close(seen.logits, expected, rtol=0, atol=1e-6)
    else:
        assert torch.equal(seen.logits, expected)


def test_the_pooling_of_siglip_is_seen() -> None:
    view = look("hf_siglip")
    keep = Keep("pool", whole)
    seen = trace(view, keep)[keep][0]
    head = view.model.vision_model.head
    with torch.no_grad():
        tokens = view.model.vision_model.post_layernorm(view.run(view.embed(images(2))))
        probe = head.probe.repeat(2, 1, 1)
        expected = head.attention(probe, tokens, tokens, average_attn_weights=False)[1]
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize("method", ["decompx", "generic", "rollout", "ixg", "gradcam", "saliency", "skipplus(ixg)"])
def test_methods_run_and_leave_the_model_alone(family: str, method: str) -> None:
    view = look(family)
    if view.windowed and method in ("generic", "rollout", "skipplus(ixg)"):
        pytest.skip("needs attention between all tokens, or one grid")
    view.model.train()
    found = vt.method(method).attribute(view, images(2), target=1)
    assert torch.isfinite(found).all()
    assert found.flatten(1).std(dim=1).min() > 0
    assert all(module.training for module in view.model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in view.model.modules() if not m._modules)
    assert all(parameter.grad is None for parameter in view.model.parameters())


@pytest.mark.parametrize("family", ["hf_vit", "hf_swin", "hf_clip"])
def test_gradient_checkpointing_is_no_obstacle(family: str) -> None:
    view = look(family)
    plain = {name: vt.method(name).attribute(view, images(2), target=1) for name in ("ixg", "decompx")}
    view.model.train()
    view.model.gradient_checkpointing_enable()
    for name, expected in plain.items():
        torch.testing.assert_close(vt.method(name).attribute(view, images(2), target=1), expected)


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
def test_a_gated_mlp_is_a_gate(kind: str) -> None:
    view = vt.view(build(f"{kind}ForImageClassification", f"{kind}Config", use_swiglu_ffn=True))
    assert view.calls(0)["gate"] == 1
    torch.testing.assert_close(view.logits(images(2)), own(view, images(2)), rtol=0, atol=1e-6)
    assert torch.isfinite(vt.method("decompx").attribute(view, images(2))).all()


def test_an_activation_nobody_knows_is_loud() -> None:
    view = vt.view(build("ViTForImageClassification", "ViTConfig", hidden_act="gelu_new"))
    with pytest.raises(vt.VitreousError, match="saw 0 activation calls in block 0"):
        vt.method("decompx").attribute(view, images(1))


@pytest.mark.parametrize("kind", ["flash_attention_2", "flex_attention", "paged|sdpa"])
def test_attention_that_cannot_be_observed_is_refused(kind: str) -> None:
    model: Any = FAMILIES["hf_vit"]()
    view = vt.view(model)
    model.config._attn_implementation_internal = kind
    for refuse in (lambda: vt.view(model), lambda: vt.method("ixg").attribute(view, images(1))):
        with pytest.raises(ModelError) as caught:
            refuse()
        assert kind in str(caught.value)
        assert 'attn_implementation="sdpa"' in str(caught.value)


def test_models_without_a_view_are_named() -> None:
    config = hf.ViTConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=3, image_size=32, patch_size=8)
    with pytest.raises(ModelError, match="ViTModel is not supported; supported: ViTForImageClassification"):
        vt.view(hf.ViTModel(config))
    config.num_labels = 0
    with pytest.raises(ModelError, match="no classifier"):
        vt.view(hf.ViTForImageClassification(config))


def test_subclasses_are_known() -> None:
    class Mine(hf.ViTForImageClassification):
        pass

    model: Any = FAMILIES["hf_vit"]()
    model.__class__ = Mine
    assert vt.view(model).classes == 5


# -- classes that are prompts --------------------------------------------------------------------------


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: i for i, word in enumerate(["[UNK]", "a", "photo", "of", "cat", "dog", "bird", "sleeping"])}
    words |= {"[PAD]": 96, "<s>": 97, "</s>": 98}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 97), ("</s>", 98)]
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", eos_token="</s>", unk_token="[UNK]")


PROMPTS = ["a photo of a cat", "a photo of a sleeping dog", "bird"]


@pytest.mark.parametrize("make", ["CLIP", "Siglip"])
def test_prompts_are_classes(make: str) -> None:
    """The logits are the model's own ``logits_per_image`` for these prompts."""
    model = build(f"{make}Model", f"{make}Config")
    view: Any = vt.view(model, prompts=PROMPTS, tokenizer=tokenizer())
    assert (view.labels, view.classes) == (PROMPTS, 3)
    assert view.class_index("a photo of a cat") == 0
    padded: Any = True if make == "CLIP" else "max_length"
    words = tokenizer()(PROMPTS, padding=padded, max_length=None if padded is True else 16, return_tensors="pt")
    if make == "Siglip":
        words = {"input_ids": words["input_ids"]}
    else:
        words = {key: words[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = model(**words, pixel_values=images(2)).logits_per_image
    torch.testing.assert_close(view.logits(images(2)), expected, rtol=0, atol=1e-6)
    assert vt.method("generic").attribute(view, images(2), target="bird").shape == (2, 4, 4)
    double = view.model.double()
    assert view.logits(images(2)).dtype == torch.float64
    double.float()


def test_prompts_that_cannot_be_read() -> None:
    model = build("CLIPModel", "CLIPConfig")
    for facts, named in [
        ({}, "no classes of its own; give prompts="),
        ({"prompts": []}, "no classes of its own"),
        ({"prompts": PROMPTS}, "needs tokenizer="),
        ({"prompts": ["cat " * 40], "tokenizer": tokenizer()}, "longer than the 16 pieces"),
        ({"text_embeds": torch.zeros(3)}, "finite numbers"),
        ({"text_embeds": torch.ones(3, 7)}, "7 wide, images 20"),
        ({"text_embeds": torch.ones(3, 20), "labels": ["a"]}, "3 classes but 1 labels"),
    ]:
        with pytest.raises(ModelError, match=named):
            vt.view(model, **facts)
    with pytest.raises(ModelError, match="has classes of its own"):
        vt.view(FAMILIES["hf_vit"](), prompts=PROMPTS)


# -- loading -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved ViT with labels and its processor."""
    model: Any = FAMILIES["hf_vit"]()
    model.config.id2label = dict(enumerate(LABELS))
    model.save_pretrained(tmp_path / "vit")
    processor(hf.ViTImageProcessor, size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def processor(kind: Any, **settings: Any) -> Any:
    return kind(**settings)


def test_a_saved_model_comes_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = FAMILIES["hf_vit"]()
    view = vt.load(f"hf/{folder}")
    assert view.labels == LABELS
    assert view.preprocess == Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, "bilinear", 1.0, "squash")
    torch.testing.assert_close(view.logits(images(2)), vt.view(model).logits(images(2)))
    assert not view.model.training
    monkeypatch.chdir(folder.parent)
    assert vt.load("hf/./vit", dtype="float64").dtype == torch.float64
    assert vt.load("hf/./vit", attn_implementation="eager").model.config._attn_implementation == "eager"


def test_load_options(folder: Path) -> None:
    name = f"hf/{folder}"
    assert vt.load(name, num_classes=3, labels=list("abc")).labels == list("abc")
    larger = vt.load(name, img_size=48)
    assert (larger.preprocess.size, larger.grid()) == ((48, 48), (6, 6))
    untrained = vt.load(name, pretrained=False, img_size=48, num_hidden_layers=2)
    assert (untrained.depth, untrained.grid(), untrained.labels) == (2, (6, 6), LABELS)
    assert untrained.model.vit.embeddings.position_embeddings.shape[1] == 37
    changed: Any = FAMILIES["hf_vit"]()
    with torch.no_grad():
        changed.classifier.bias += 1
    torch.save(changed.state_dict(), folder / "mine.pt")
    filled = vt.load(name, checkpoint=folder / "mine.pt")
    torch.testing.assert_close(filled.logits(images(1)), vt.view(changed).logits(images(1)))


def test_a_prompted_model_comes_back(tmp_path: Path) -> None:
    model = build("CLIPModel", "CLIPConfig")
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    settings = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
    processor(hf.CLIPImageProcessor, **settings).save_pretrained(tmp_path)
    view = vt.load(f"hf/{tmp_path}", prompts=PROMPTS)
    expected = vt.view(model, prompts=PROMPTS, tokenizer=tokenizer())
    torch.testing.assert_close(view.logits(images(1)), expected.logits(images(1)))
    assert (view.labels, view.preprocess.mode, view.preprocess.crop) == (PROMPTS, "center", 32 / 36)
    assert vt.view(view.model, prompts=["cat"]).labels == ["cat"]  # the tokenizer is remembered
    assert vt.view(view.model, text_embeds=torch.ones(2, 20)).labels is None
    with pytest.raises(ModelError, match="no classes of its own"):
        vt.load(f"hf/{tmp_path}")
    with pytest.raises(ModelError, match="zero-shot model"):
        vt.load(f"hf/{tmp_path}", num_classes=3)


def test_weights_without_a_head_are_loud(tmp_path: Path) -> None:
    model: Any = FAMILIES["hf_vit"]()
    model.vit.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="hold no classifier; give num_classes="):
        vt.load(f"hf/{tmp_path}")
    with pytest.warns(vt.VitreousWarning, match="no image processor was found"):
        view = vt.load(f"hf/{tmp_path}", num_classes=4, img_size=48)
    assert (view.classes, view.grid()) == (4, (6, 6))


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("hf/google/vit-base-patch16-224", {}, "hub cannot be reached"),  # HF_HUB_OFFLINE is set here
        ("hf/./nowhere", {}, "no folder 'nowhere'"),
        ("hf/{folder}/empty", {}, "no config.json"),
        ("hf/{folder}", {"num_classes": 0}, "num_classes=0"),
        ("hf/{folder}", {"pretrained": False, "nonsense": 3}, "no 'nonsense'"),
        ("hf/{folder}", {"prompts": ["cat"]}, "has classes of its own"),
        ("hf/{folder}", {"checkpoint": "nowhere.pt"}, "no checkpoint"),
    ],
)
def test_load_refuses(folder: Path, name: str, options: dict[str, Any], named: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ModelError) as caught:
        vt.load(name.format(folder=folder), **options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="could not fetch hf/owner/name: the model hub cannot be reached"):
        vt.load("hf/owner/name")
    (tmp_path / "models--owner--name" / "snapshots" / "0").mkdir(parents=True)
    assert hub.reachable("owner/name")


def test_other_types_are_named(tmp_path: Path) -> None:
    hf.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="of type 'bert'; supported: vit, deit"):
        vt.load(f"hf/{tmp_path}")


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}')
    with pytest.raises(ModelError, match="could not load"):
        vt.load(f"hf/{tmp_path}")


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"needs the package transformers: pip install 'vitreous\[hf\]'"):
        vt.load("hf/google/vit-base-patch16-224")
    assert any(info.name == "hf/openai/clip-vit-base-patch32" for info in vt.models())


def test_other_models_do_not_import_transformers() -> None:
    code = """
import sys, torch, vitreous as vt
vt.load("timm/vit_tiny_patch16_224", pretrained=False, depth=1)
try:
    vt.view(torch.nn.Linear(1, 1))
except vt.VitreousError:
    pass
vt.models()
assert "transformers" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- preprocessing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("ViTImageProcessor", {}, ((224, 224), "squash", 1.0, "bilinear")),
        ("DeiTImageProcessor", {}, ((224, 224), "squash", 224 / 256, "bicubic")),
        ("CLIPImageProcessor", {}, ((224, 224), "center", 1.0, "bicubic")),
        ("BitImageProcessor", {"size": {"shortest_edge": 256}}, ((224, 224), "center", 0.875, "bicubic")),
        ("SiglipImageProcessor", {"size": {"height": 64, "width": 96}}, ((64, 96), "squash", 1.0, "bicubic")),
    ],
)
def test_image_processors_as_data(kind: str, settings: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """The same picture through theirs and ours; resizing may round a colour to a neighbour."""
    theirs = getattr(hf, kind)(**settings)
    ours = preprocess_of(theirs)
    assert (ours.size, ours.mode, ours.crop, ours.interpolation) == expected
    assert ours.mean == pytest.approx(tuple(theirs.image_mean))
    noise = torch.randint(0, 256, (30, 40, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    photo = Image.fromarray(noise.numpy()).resize((400, 300), Image.Resampling.BICUBIC)
    found = ours.tensor(ours.see(photo)[0])
    wanted = theirs(photo, return_tensors="pt")["pixel_values"][0]
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 3 / 255 / min(ours.std)


@pytest.mark.parametrize("crop", [224, 336, 384, 518])
@pytest.mark.parametrize("resized", [232, 256, 438, 439, 592])
def test_a_crop_gives_the_size_it_came_from(crop: int, resized: int) -> None:
    settings = {"size": {"shortest_edge": resized}, "crop_size": {"height": crop, "width": crop}}
    found = preprocess_of(hf.CLIPImageProcessor(**settings))
    assert found._scaled_size(resized * 2, resized * 2) == (resized, resized)
