"""Views of timm models against timm itself."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images, rounding
from vitreous.errors import ModelError
from vitreous.models import Pooling

SMALL: dict[str, Any] = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}

#        depth, prefix tokens, grid, pooling
FACTS = {
    "vit": (3, 1, (4, 4), "token"),
    "deit_distilled": (3, 2, (4, 4), "pair"),
    "deit3": (3, 1, (4, 4), "token"),
    "registers": (3, 5, (4, 4), "token"),
    "gap": (3, 0, (4, 4), "avg"),
    "gap_all": (3, 1, (4, 4), "avg_all"),
    "clip": (3, 1, (4, 4), "token"),
    "siglip": (3, 0, (4, 4), "map"),
    "nonsquare": (3, 1, (4, 3), "token"),
    "qk_norm": (3, 1, (4, 4), "token"),
    "swiglu": (3, 1, (4, 4), "token"),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def double(family: str) -> nn.Module:
    """In double precision, so that the order of a sum does not matter."""
    return FAMILIES[family]().double()


def tokens_by_hand(model: Any, inputs: Tensor) -> Tensor:
    """Patches, class, distillation and register tokens with their positions, put together step by step."""
    patches = model.patch_embed.norm(model.patch_embed.proj(inputs).flatten(2).transpose(1, 2))
    parts = [getattr(model, name, None) for name in ("cls_token", "dist_token", "reg_token")]
    prefix = [part.expand(len(inputs), -1, -1) for part in parts if part is not None]
    if model.no_embed_class:
        tokens = torch.cat([*prefix, patches + model.pos_embed], dim=1)
    else:
        tokens = torch.cat([*prefix, patches], dim=1) + model.pos_embed
    return model.norm_pre(tokens)


def logits_by_hand(model: Any, tokens: Tensor) -> Tensor:
    for block in model.blocks:
        tokens = block(tokens)
    return model.forward_head(model.norm(tokens))


# -- the three verbs -----------------------------------------------------------------------------------


def test_every_family_is_looked_at() -> None:
    assert FACTS.keys() == FAMILIES.keys()


@torch.no_grad()
def test_embed_run_finish_is_the_model(family: str) -> None:
    model = FAMILIES[family]()
    vision_model, inputs = vt.wrap(model), images(model, 3)
    within = max(1e-6, rounding(family))
    torch.testing.assert_close(
        vision_model.forward_head(vision_model.forward_blocks(vision_model.embed(inputs))),
        model(inputs),
        rtol=0,
        atol=within,
    )
    torch.testing.assert_close(vision_model.logits(inputs), model(inputs), rtol=0, atol=within)


@torch.no_grad()
def test_embed_is_the_embedding_by_hand(family: str) -> None:
    model = double(family)
    inputs = images(model, 2)
    torch.testing.assert_close(vt.wrap(model).embed(inputs), tokens_by_hand(model, inputs), rtol=0, atol=1e-12)


@torch.no_grad()
def test_split_at_every_layer(family: str) -> None:
    model = FAMILIES[family]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    expected = model(inputs)
    for layer in range(vision_model.depth + 1):
        head = vision_model.forward_blocks(vision_model.embed(inputs), 0, layer)
        torch.testing.assert_close(
            vision_model.forward_head(vision_model.forward_blocks(head, layer)), expected, rtol=0, atol=1e-6
        )


@torch.no_grad()
def test_suffix_goes_on_where_the_prefix_stopped(family: str) -> None:
    model = FAMILIES[family]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    expected = model(inputs)
    for layer in range(vision_model.depth):
        remaining = vision_model.suffix(layer)
        tokens = vision_model.forward_blocks(vision_model.embed(inputs), 0, layer)
        remaining.check_inputs(tokens)
        assert remaining.depth == vision_model.depth - layer
        assert remaining.grid() == vision_model.grid()
        torch.testing.assert_close(remaining.logits(tokens), expected, rtol=0, atol=max(1e-6, rounding(family)))
        assert remaining.forward_block(0, tokens).equal(model.blocks[layer](tokens))


@pytest.mark.parametrize("layer", [-1, 3])
def test_suffix_outside_the_model(layer: int) -> None:
    with pytest.raises(ModelError, match=f"layer {layer} is outside 0..2"):
        vt.wrap(FAMILIES["vit"]()).suffix(layer)


def test_suffix_takes_tokens_only() -> None:
    model = FAMILIES["vit"]()
    with pytest.raises(ModelError, match=r"tokens .*got \[1, 3, 32, 32\]"):
        vt.wrap(model).suffix(1).check_inputs(images(model, 1))


# -- leaving tokens out --------------------------------------------------------------------------------


@torch.no_grad()
def test_keeping_all_patches_changes_nothing(family: str) -> None:
    model = double(family)
    vision_model, inputs = vt.wrap(model), images(model, 2)
    count = FACTS[family][2][0] * FACTS[family][2][1]
    everything = torch.arange(count).expand(2, -1)
    shuffled = torch.stack([torch.randperm(count, generator=torch.Generator().manual_seed(s)) for s in (1, 2)])
    for keep in (everything, shuffled, shuffled.int()):
        torch.testing.assert_close(vision_model.logits(inputs, keep=keep), model(inputs), rtol=0, atol=1e-10)


@torch.no_grad()
def test_keeping_some_patches_by_hand(family: str) -> None:
    model = double(family)
    vision_model, inputs = vt.wrap(model), images(model, 3)
    prefix, keep = FACTS[family][1], torch.tensor([[0, 5, 7], [11, 2, 3], [9, 8, 1]])
    tokens = tokens_by_hand(model, inputs)
    rows = [[*range(prefix), *(prefix + k for k in row)] for row in keep.tolist()]
    picked = torch.stack([tokens[i, row] for i, row in enumerate(rows)])
    expected = logits_by_hand(model, picked)
    torch.testing.assert_close(vision_model.logits(inputs, keep=keep), expected, rtol=0, atol=1e-10)
    assert not torch.allclose(expected, model(inputs))


@torch.no_grad()
def test_prefix_tokens_always_stay(family: str) -> None:
    model = FAMILIES[family]()
    vision_model = vt.wrap(model)
    tokens = vision_model.embed(images(model, 2))
    selected = vision_model.select_tokens(tokens, torch.empty(2, 0, dtype=torch.long))
    assert selected.equal(tokens[:, : FACTS[family][1]])


@pytest.mark.parametrize(
    ("keep", "named"),
    [
        (torch.tensor([[0, 16], [0, 1]]), "patch 16, outside 0..15"),
        (torch.tensor([[0, -1], [0, 1]]), "patch -1, outside 0..15"),
        (torch.tensor([[0.0, 1.0], [0.0, 1.0]]), "integer patch indices"),
        (torch.ones(2, 16, dtype=torch.bool), "integer patch indices"),  # a mask is not a list of indices
        (torch.tensor([[0, 1]]), r"\[2, k\]"),
        (torch.tensor([0, 1]), r"\[2, k\]"),
    ],
    ids=["too large", "negative", "float", "mask", "other batch", "one row"],
)
def test_wrong_keep(keep: Tensor, named: str) -> None:
    model = FAMILIES["vit"]()
    with pytest.raises(ModelError, match=named):
        vt.wrap(model).logits(images(model, 2), keep=keep)


# -- facts ---------------------------------------------------------------------------------------------


def test_facts(family: str) -> None:
    model = vt.wrap(FAMILIES[family]())
    assert (model.depth, model.num_prefix_tokens, model.grid(), model.pooling.kind) == FACTS[family]
    assert (model.embed_dim, model.num_heads, model.num_classes, model.class_names) == (24, 3, 5, None)
    assert model.preprocess.size == ((32, 48) if family == "nonsquare" else (32, 32))
    assert model.pooling.uses_attention == (family == "siglip")
    assert model.label(3) == "class 3"
    assert vt.wrap(model) is model


@torch.no_grad()
@pytest.mark.parametrize("family", ["vit", "deit3", "registers", "gap", "gap_all", "deit_distilled"])
def test_pooling_row_is_what_the_head_reads(family: str) -> None:
    """What enters the head (or the norm before it) is seen by a hook; a distilled model averages two heads."""
    model: Any = double(family)
    vision_model = vt.wrap(model)
    seen: list[Tensor] = []
    readers = [model.head, model.head_dist] if family == "deit_distilled" else [model.fc_norm]
    hooks = [part.register_forward_pre_hook(lambda module, options: seen.append(options[0])) for part in readers]
    tokens = model.norm(vision_model.forward_blocks(vision_model.embed(images(model, 2))))
    model.forward_head(tokens)
    for hook in hooks:
        hook.remove()
    row = vision_model.pooling.row(tokens)
    assert row.shape == tokens.shape[:2]
    torch.testing.assert_close(row.sum(dim=1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(torch.einsum("bn,bnd->bd", row, tokens), torch.stack(seen).mean(dim=0))


def test_pooling_of_another_kind() -> None:
    with pytest.raises(ModelError, match="'max'"):
        Pooling("max", 1)


def dynamic() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", dynamic_img_size=True, **SMALL).double().eval()


def test_dynamic_size() -> None:
    model = dynamic()
    vision_model, inputs = vt.wrap(model), torch.randn(2, 3, 64, 48, dtype=torch.float64)
    vision_model.check_inputs(inputs)
    assert (vision_model.grid(), vision_model.grid(inputs)) == ((2, 2), (4, 3))
    torch.testing.assert_close(vision_model.logits(inputs), model(inputs))
    keep = torch.randperm(12, generator=torch.Generator().manual_seed(0)).expand(2, -1)
    torch.testing.assert_close(vision_model.logits(inputs, keep=keep), model(inputs))
    assert vt.explain(vision_model, inputs, "ixg")[0].map.shape == (4, 3)


def test_dynamic_size_that_patches_do_not_fill() -> None:
    with pytest.raises(ModelError, match="40"):
        vt.explain(dynamic(), torch.randn(1, 3, 40, 32))


# -- nothing is left behind ----------------------------------------------------------------------------


def test_training_flags_come_back_one_by_one() -> None:
    model: Any = VisionTransformer(**SMALL, patch_size=16, proj_drop_rate=0.5, drop_rate=0.5)
    inputs = images(model, 2)
    expected = model.eval()(inputs).detach()
    model.train()
    model.blocks[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    vision_model = vt.wrap(model)
    torch.testing.assert_close(vision_model.logits(inputs), expected)
    assert {name: module.training for name, module in model.named_modules()} == before


# -- refusals ------------------------------------------------------------------------------------------


def test_refuses_what_no_adapter_knows() -> None:
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.linear\.Linear.*timm"):
        vt.wrap(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="got dict"):
        vt.wrap({})  # type: ignore[arg-type]


def test_refuses_a_model_without_head_or_with_other_blocks() -> None:
    with pytest.raises(ModelError, match="no classifier"):
        vt.wrap(timm.create_model("vit_tiny_patch16_224", **{**SMALL, "num_classes": 0}))
    with pytest.raises(ModelError, match="block 0 is a ParallelScalingBlock"):
        vt.wrap(timm.create_model("vit_base_patch16_xp_224", **SMALL))


def test_refuses_too_few_labels() -> None:
    with pytest.raises(ModelError, match="5 classes but 2 labels"):
        vt.wrap(FAMILIES["vit"](), class_names=["a", "b"])


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (torch.zeros(1, 3, 32, 48), r"\[1, 3, 32, 48\]"),
        (torch.zeros(1, 1, 32, 32), r"\[1, 1, 32, 32\]"),
        (torch.zeros(32, 32), r"\[32, 32\]"),
        (torch.zeros(0, 3, 32, 32), "empty"),
        (torch.full((1, 3, 32, 32), float("nan")), "not finite"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "uint8"),  # bytes are not normalised
    ],
    ids=["size", "channels", "no batch", "empty", "nan", "bytes"],
)
def test_refuses_wrong_inputs(inputs: Tensor, named: str) -> None:
    model = vt.wrap(FAMILIES["vit"]())
    with pytest.raises(ModelError, match=named):
        model.check_inputs(inputs)
    with pytest.raises(ModelError, match=named):
        vt.explain(model, inputs)
