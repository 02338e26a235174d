"""Views of timm's BEiT, EVA and Swin families against timm itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models.eva import EvaBlockPostNorm
from torch import Tensor, nn

import vitreous as vt
from families import images, rounding
from families_timm import FAMILIES, VARIANTS
from vitreous.errors import ModelError
from vitreous.tracing import Context, Pass, Record, Target, activation_grad, activation_value

EVERY = {**FAMILIES, **VARIANTS}
BEIT = ["beit", "beit_shared", "only_shared"]
EVA = [
    name for name in ("eva", "eva02", "packed", "mixed", "mixed_dynamic", "dinov3", "grouped", "map") if name in EVERY
]
SWIN = ["swin", "swinv2"]

#        depth, width, heads, prefix tokens, grid of every layer, pooling
FACTS = {
    "beit": (3, 24, 3, 1, [(4, 4)] * 3, "avg"),
    "beit_shared": (3, 24, 3, 1, [(4, 4)] * 3, "token"),
    "eva": (3, 24, 3, 1, [(4, 4)] * 3, "avg"),
    "eva02": (3, 24, 3, 1, [(4, 4)] * 3, "avg"),
    "swin": (4, 48, 4, 0, [(8, 8)] * 2 + [(4, 4)] * 2, "avg"),
    "swinv2": (4, 48, 4, 0, [(16, 16)] * 2 + [(8, 8)] * 2, "avg"),
    "only_shared": (2, 24, 3, 1, [(4, 6)] * 2, "avg"),
    "packed": (3, 24, 3, 1, [(4, 6)] * 3, "avg"),
    "mixed": (3, 24, 3, 1, [(4, 4)] * 3, "token"),
    "mixed_dynamic": (3, 24, 3, 1, [(4, 6)] * 3, "token"),
    "dinov3": (3, 24, 3, 5, [(4, 4)] * 3, "avg"),
    "grouped": (3, 32, 4, 1, [(4, 4)] * 3, "token"),
    "map": (3, 24, 3, 1, [(4, 4)] * 3, "map"),
}


@pytest.fixture(params=EVERY)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def broad(family: str) -> Any:
    """In double precision, so that the order of a sum does not matter; timm's learnt rotations know only single."""
    model = EVERY[family]()
    return model if family.startswith("mixed") else model.double()


def close(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-10 if expected.dtype == torch.float64 else 1e-5)


# -- the three verbs -----------------------------------------------------------------------------------


def test_every_family_is_looked_at() -> None:
    assert EVERY.keys() == {*BEIT, *EVA, *SWIN}
    assert FACTS.keys() == {*EVERY, "grouped"}  # which an older timm lacks


@torch.no_grad()
def test_embed_run_finish_is_the_model_wherever_it_is_cut(family: str) -> None:
    model = EVERY[family]()
    vision_model, inputs = vt.wrap(model), images(model, 3)
    expected = model(inputs)
    torch.testing.assert_close(vision_model.logits(inputs), expected, rtol=0, atol=rounding(family))
    for layer in range(vision_model.depth + 1):
        tokens = vision_model.forward_blocks(vision_model.embed(inputs), 0, layer)
        torch.testing.assert_close(
            vision_model.forward_head(vision_model.forward_blocks(tokens, layer)), expected, rtol=0, atol=1e-6
        )


@torch.no_grad()
def test_suffix_goes_on_where_the_prefix_stopped(family: str) -> None:
    model = EVERY[family]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    for layer in range(vision_model.depth):
        remaining = vision_model.suffix(layer)
        tokens = vision_model.forward_blocks(vision_model.embed(inputs), 0, layer)
        remaining.check_inputs(tokens)
        assert (remaining.depth, remaining.grid()) == (vision_model.depth - layer, vision_model.grid(layer=layer))
        torch.testing.assert_close(remaining.logits(tokens), model(inputs), rtol=0, atol=max(1e-6, rounding(family)))


@torch.no_grad()
@pytest.mark.parametrize("family", SWIN)
def test_every_block_gets_tokens_on_its_own_grid(family: str) -> None:
    """What enters a stage of timm enters its first block here, merged already; and the same at the end."""
    model: Any = EVERY[family]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    tokens, expected = vision_model.embed(inputs), model.patch_embed(inputs)
    assert vision_model.stages == (range(0, 2), range(2, 4))
    for layers, stage in zip(vision_model.stages, model.layers, strict=True):
        for layer in layers:
            height, width = vision_model.grid(layer=layer)
            assert tokens.shape[1] == height * width
            tokens = vision_model.forward_block(layer, tokens)
        expected = stage(expected)
        if layers.stop < vision_model.depth:
            assert tokens.equal(model.layers[1].downsample(expected).flatten(1, 2))
    assert tokens.equal(expected.flatten(1, 2))
    assert any(any(block.shift_size) for stage in model.layers for block in stage.blocks)


def test_facts(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    grids = [model.grid(layer=layer) for layer in range(model.depth)]
    assert (model.depth, model.embed_dim, model.num_heads, model.num_prefix_tokens, grids, model.pooling.kind) == FACTS[
        family
    ]
    assert (model.num_classes, model.class_names, model.family) == (5, None, "timm")
    assert model.preprocess.size == tuple(model.module.patch_embed.img_size)
    swin = family in SWIN
    assert ((model.attention == "windowed"), model.can_drop_tokens, bool(model.stages)) == (swin, not swin, swin)


# -- leaving tokens out --------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("family", [*BEIT, *EVA])
def test_keeping_all_patches_changes_nothing(family: str) -> None:
    model = broad(family)
    vision_model, inputs = vt.wrap(model), images(model, 2)
    height, columns = vision_model.grid()
    ordered = torch.arange(height * columns).expand(2, -1)
    shuffled = torch.stack(
        [torch.randperm(height * columns, generator=torch.Generator().manual_seed(s)) for s in (1, 2)]
    )
    tokens = vision_model.embed(inputs)
    for layer in range(vision_model.depth):
        close(vision_model.forward_block(layer, tokens, ordered), vision_model.forward_block(layer, tokens))
    for keep in (ordered, shuffled, shuffled.int()):
        close(vision_model.logits(inputs, keep=keep), model(inputs))


KEEP = torch.tensor([[0, 5, 7], [11, 2, 3], [9, 8, 15]])


@torch.no_grad()
@pytest.mark.parametrize("family", BEIT)
def test_left_out_is_never_looked_at(family: str) -> None:
    """All tokens run, but nobody may look at those left out: the others cannot tell the difference."""
    model = broad(family)
    vision_model, inputs = vt.wrap(model), images(model, 3)
    everyone = vision_model.embed(inputs)
    rows = torch.cat([torch.zeros(3, 1, dtype=torch.long), KEEP + 1], dim=1)
    hidden = torch.full((3, 1, 1, everyone.shape[1]), -torch.inf, dtype=everyone.dtype)
    for image, selected in enumerate(rows.tolist()):
        hidden[image, :, :, selected] = 0
    shared = 0 if model.rel_pos_bias is None else model.rel_pos_bias()
    few = vision_model.select_tokens(everyone, KEEP)
    for layer, block in enumerate(model.blocks):
        everyone = block(everyone, shared_rel_pos_bias=shared + hidden)
        few = vision_model.forward_block(layer, few, KEEP)
        close(few, everyone[torch.arange(3)[:, None], rows])
    close(vision_model.logits(inputs, keep=KEEP), vision_model.forward_head(everyone[torch.arange(3)[:, None], rows]))
    assert not torch.allclose(vision_model.logits(inputs, keep=KEEP), model(inputs), atol=1e-3)


class Drop(nn.Module):
    """Stands where timm drops patches while it trains, and drops those we say."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        rows = [[*range(self.prefix), *(self.prefix + patch for patch in selected)] for selected in KEEP.tolist()]
        return torch.stack([tokens[image, row] for image, row in enumerate(rows)]), KEEP


@torch.no_grad()
@pytest.mark.parametrize("family", EVA)
def test_left_out_as_timm_drops_patches(family: str) -> None:
    model = broad(family)
    vision_model, inputs = vt.wrap(model), images(model, 3)
    result, reference = vision_model.logits(inputs, keep=KEEP), model(inputs)
    model.patch_drop = Drop(FACTS[family][3])
    close(result, model(inputs))
    assert not torch.allclose(result, reference, atol=1e-3)


@pytest.mark.parametrize("family", SWIN)
def test_windows_need_the_whole_grid(family: str) -> None:
    model = EVERY[family]()
    vision_model, inputs = vt.wrap(model), images(model, 3)
    for refused in (
        lambda: vision_model.logits(inputs, keep=KEEP),
        lambda: vision_model.forward_block(0, vision_model.embed(inputs), KEEP),
    ):
        with pytest.raises(ModelError, match="whole grid; mask their embeddings instead"):
            refused()


# -- places --------------------------------------------------------------------------------------------


def trace(model: vt.VisionModel, *keeps: Record) -> Any:
    return Context(model, images(model.module, 2), Target.of(model, 2, 1)).run_pass(Pass(keeps))


@pytest.mark.parametrize("family", ["beit_shared", "packed", "swinv2"])
def test_branches_add_up_to_the_residual_stream(family: str) -> None:
    model = vt.wrap(broad(family))
    layers = tuple(layer for layer in range(model.depth) if layer + 1 not in [stage.start for stage in model.stages])
    keeps = [
        Record(point, activation_value, layers, grad=False) for point in ("resid_pre", "attn", "mlp", "resid_post")
    ]
    result = trace(model, *keeps)
    for before, attn, mlp, after in zip(*(result[keep] for keep in keeps), strict=True):
        close(before + attn + mlp, after)


@pytest.mark.parametrize(
    ("family", "point", "named"),
    [
        ("beit", "attn", "LayerScale is a parameter"),
        ("beit", "mlp", "LayerScale is a parameter"),
        ("eva02", "attn", "LayerScale is a parameter"),
        ("dinov3", "mlp", "LayerScale is a parameter"),
        ("swin", "attn", "windows"),
    ],
)
def test_branches_without_a_module_are_refused(family: str, point: str, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        vt.wrap(EVERY[family]()).hook_point(1, point)


def test_class_activation_maps_look_where_every_patch_reaches_the_class(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    keep = Record(model.cam_point, activation_grad, (model.depth - 1,))
    (gradient,) = trace(model, keep)[keep]
    upper, columns = model.grid(layer=model.depth - 1)
    assert gradient.shape[:2] == (2, model.num_prefix_tokens + upper * columns)
    assert (gradient[:, model.num_prefix_tokens :].abs().amax(dim=-1) > 0).all()


# -- names, weights, refusals --------------------------------------------------------------------------


def test_images_of_another_size_are_refused(family: str) -> None:
    """Also where the model could take them: the blocks would not know the new grid."""
    with pytest.raises(ModelError, match=r"\[1, 3, 40, 40\]"):
        vt.wrap(EVERY[family]()).check_inputs(torch.zeros(1, 3, 40, 40))


SMALL = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
SMALL_SWIN = {"img_size": 64, "depths": (2, 2), "embed_dim": 24, "num_heads": (2, 4), "num_classes": 5}


def first_stage(name: str) -> str:
    """As Microsoft's files have it: a stage ends with its merging, and the head is one layer."""
    return name.replace("layers.1.downsample", "layers.0.downsample").replace("head.fc.", "head.")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("beit_base_patch16_224", SMALL),
        ("eva02_tiny_patch14_224", {**SMALL, "img_size": 28}),
        ("swin_tiny_patch4_window7_224", {**SMALL_SWIN, "window_size": 4}),
        ("swinv2_tiny_window8_256", {**SMALL_SWIN, "window_size": 4}),
    ],
)
def test_published_checkpoints_are_converted(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = timm.create_model(name, **options).eval()
    tensors = {first_stage(key): value for key, value in model.state_dict().items()}
    block = "layers.0.blocks.0" if "swin" in name else "blocks.0"
    if not name.startswith("eva"):
        tensors[f"{block}.attn.relative_position_index"] = torch.zeros(1)  # a table that old files carry along
    torch.save({"model": tensors}, tmp_path / "weights.pth")
    vision_model = vt.load(f"timm/{name}", checkpoint=tmp_path / "weights.pth", **options)
    inputs = images(model, 2)
    assert torch.equal(vision_model.logits(inputs), model(inputs).detach())


def test_refuses_other_blocks_and_missing_heads() -> None:
    small = {**SMALL, "img_size": 28}
    other: Any = timm.create_model("eva02_tiny_patch14_224", **small)
    other.blocks[0] = EvaBlockPostNorm(other.embed_dim, other.blocks[0].attn.num_heads)
    with pytest.raises(ModelError, match="block 0 is a EvaBlockPostNorm"):
        vt.wrap(other)
    for name, options in (("beit_base_patch16_224", SMALL), ("swin_tiny_patch4_window7_224", SMALL_SWIN)):
        with pytest.raises(ModelError, match="no classifier"):
            vt.wrap(timm.create_model(name, **{**options, "num_classes": 0}))
    with pytest.raises(ModelError, match="pooling 'none'"):
        vt.wrap(timm.create_model("eva02_tiny_patch14_224", **small, global_pool=""))
