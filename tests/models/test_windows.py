"""Attention inside windows: each layer's windows against the block itself, every method against whole matrices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images
from reference_windows import ODD, SWINS, hf, same, slow_of, timm, torchvision
from vitreous.errors import ModelError
from vitreous.methods.base import compute_attributions
from vitreous.tracing import Activation, Context, Pass, Record, Target


@pytest.fixture(params=SWINS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- windows ---------------------------------------------------------------------------------------


def test_a_patch_reaches_exactly_those_that_see_it(kind: str) -> None:
    """Change one patch: of a block's output, before patches are merged, those change that the windows say."""
    model = vt.wrap(SWINS[kind]())
    for layer in range(model.depth):
        check_reach(model, layer)


@torch.no_grad()
def check_reach(model: vt.VisionModel, layer: int) -> None:
    windows, (height, width) = model.windows(layer), model.grid(layer=layer)
    patches = height * width
    assert windows is not None
    assert sorted(windows.patches[windows.patches >= 0].tolist()) == list(range(patches))
    expected = torch.zeros(patches, patches, dtype=torch.bool)
    for window, sees in zip(windows.patches.tolist(), windows.sees.tolist(), strict=True):
        for i, looks in zip(window, sees, strict=True):
            for j, seen in zip(window, looks, strict=True):
                assert not seen or min(i, j) >= 0
                if seen:
                    expected[j, i] = True
    generator = torch.Generator().manual_seed(layer)
    tokens = torch.randn(patches, model.embed_dim_at(layer), generator=generator, dtype=torch.float64)
    changed = tokens.repeat(patches + 1, 1, 1)
    changed[range(patches), range(patches), 0] += 1
    seen = []
    hook = model.get_block(layer).register_forward_hook(lambda block, args, out, seen=seen: seen.append(out))
    model.forward_block(layer, changed)
    hook.remove()
    out = seen[0] if isinstance(seen[0], Tensor) else seen[0][0]
    out = out.reshape(patches + 1, patches, -1)
    moved = ((out[:-1] - out[-1]).abs() > 1e-12).any(dim=-1)
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks_are_those_that_a_changed_block_uses(dynamic: bool) -> None:
    """A block that was told to make its masks anew, or that shifts without any: read when asked, never assumed."""
    model = timm(size=ODD, strict_img_size=dynamic)
    for block in (block for stage in model.layers for block in stage.blocks):
        block.dynamic_mask = dynamic
    vision_model = vt.wrap(model)
    assert any(block.shift_size != (0, 0) for block in model.layers[0].blocks)
    for layer in range(vision_model.depth):
        check_reach(vision_model, layer)


@torch.no_grad()
def test_grids_are_those_of_the_patches_that_enter_each_block(kind: str) -> None:
    model, sizes = vt.wrap(SWINS[kind]()), list[tuple[int, ...]]()

    def enter(block: nn.Module, args: tuple[Any, ...]) -> None:
        patches = args[0]
        sizes.append(tuple(args[1]) if patches.ndim == 3 else tuple(patches.shape[1:3]))

    for layer in range(model.depth):
        model.get_block(layer).register_forward_pre_hook(enter)
    model.reference_forward(images(model, 1))
    assert sizes == [model.grid(layer=layer) for layer in range(model.depth)]


@pytest.mark.parametrize("grid", [(8, 8), (9, 13)])
def test_patches_come_back_from_their_places(grid: tuple[int, int]) -> None:
    model = vt.wrap(torchvision((grid[0] * 4, grid[1] * 4)))
    windows = model.windows(1)
    row = torch.randn(2, math.prod(grid))
    assert torch.equal(windows.paste(windows.cut(row)), row)
    places = windows.cut(row)
    assert places.count_nonzero() == row.numel()
    padding = (windows.patches < 0).expand_as(places)
    assert torch.equal(windows.paste(places.masked_fill(padding, 7.0)), row)


# -- the same with whole matrices ------------------------------------------------------------------


def test_recursions_from_the_last_block_to_the_first(kind: str) -> None:
    slow = slow_of(kind)
    pairs = slow.full_matrices
    ones = [torch.eye(a.shape[-1], dtype=torch.float64) for a, _ in pairs]
    steps = [one + (a * g).clamp(min=0).mean(dim=1) for one, (a, g) in zip(ones, pairs, strict=True)]
    same(slow.maps("generic"), slow.rolled(steps))
    steps = [one + (a * g).mean(dim=1).clamp(min=0) for one, (a, g) in zip(ones, pairs, strict=True)]
    same(slow.maps("generic@bt"), slow.rolled(steps))
    same(slow.maps("grad_rollout"), slow.rolled([item / item.sum(dim=2, keepdim=True) for item in steps]))
    for heads, fused in {"mean": torch.mean, "max": torch.amax, "min": torch.amin}.items():
        mixed = [one + fused(a, dim=1) for one, (a, _) in zip(ones, pairs, strict=True)]
        rolled = slow.rolled([item / item.sum(dim=2, keepdim=True) for item in mixed])
        same(slow.maps(f"rollout(heads={heads})"), rolled)
    assert torch.allclose(rolled.sum(dim=(1, 2)), torch.ones(2, dtype=torch.float64))
    mixed = [one + a.mean(dim=1) for one, (a, _) in zip(ones, pairs, strict=True)]
    wrong = [item / item.sum(dim=2).unsqueeze(1) for item in mixed]
    same(slow.maps("rollout(normalise=released)"), slow.rolled(wrong))


def test_recursions_may_start_in_a_later_stage(kind: str) -> None:
    slow = slow_of(kind)
    pairs = slow.full_matrices
    row = torch.full((2, 1, math.prod(slow.grids[2])), 1 / math.prod(slow.grids[2]), dtype=torch.float64)
    for a, g in reversed(pairs[2:]):
        row = row + row @ (a * g).clamp(min=0).mean(dim=1)
    same(slow.maps("generic(start=2)"), row.reshape(-1, *slow.grids[2]))


def test_rows_of_one_block(kind: str) -> None:
    slow = slow_of(kind)
    pairs = slow.full_matrices
    for layer in (0, 1, 3):
        a, g = pairs[layer]
        grid, places = slow.grids[layer], math.prod(slow.window(layer))
        expected = {
            "raw_attention": a.mean(dim=(1, 2)),
            "attgrad": g.mean(dim=(1, 2)),
            "attcam": (g.sum(dim=3, keepdim=True) / places * a).mean(dim=(1, 2)),
        }
        for name, row in expected.items():
            same(slow.maps(f"{name}(layer={layer})"), row.reshape(-1, *grid))
            if layer == 3:
                same(slow.maps(name), row.reshape(-1, *grid))
    summed = sum((a * g).clamp(min=0).mean(dim=(1, 2)) for a, g in pairs[2:])
    same(slow.maps("plus(generic)"), summed.reshape(-1, *slow.grids[2]))  # inside the last of two equal stages
    summed = sum(a.mean(dim=(1, 2)) for a, _ in pairs[2:])
    same(slow.maps("plus(rollout)"), summed.reshape(-1, *slow.grids[2]))


def test_grad_sam_brings_every_block_to_the_first_grid(kind: str) -> None:
    slow = slow_of(kind)
    terms = [(a * g.clamp(min=0)).mean(dim=1) for a, g in slow.full_matrices]
    received = [slow.on_first(term.mean(dim=1), layer) for layer, term in enumerate(terms)]
    options = [slow.on_first(term.mean(dim=2), layer) for layer, term in enumerate(terms)]
    same(slow.maps("gradsam"), sum(received) / 4)
    same(slow.maps("gradsam@plus"), sum(received) / 4)  # patches are averaged: every row is read
    same(slow.maps("gradsam(reduce=keys)"), sum(options) / 4)


def test_legrad_sums_the_blocks_whose_tokens_the_head_can_read(kind: str) -> None:
    slow = slow_of(kind)
    model, grid = slow.view.shared_copy(), slow.grids[3]
    expected = torch.zeros(2, *grid, dtype=torch.float64)
    for layer in (2, 3):
        with torch.no_grad():
            tokens = model.forward_blocks(model.embed(slow.x), 0, layer)

        def score(layer: int = layer, tokens: Tensor = tokens) -> Tensor:
            out = model.forward_block(layer, tokens.clone().requires_grad_())
            return model.forward_head(out.mean(dim=1, keepdim=True).expand_as(out))[:, 1].sum()

        ((_, g),) = slow.pairs(score, [layer])
        last = g.clamp(min=0).mean(dim=(1, 2)).reshape(-1, *grid)
        expected += last
    same(slow.maps("legrad"), expected)
    same(slow.maps("legrad(last=1)"), last)


# -- ways to compute, and models around it ---------------------------------------------------------

METHODS = [
    "generic",
    "grad_rollout",
    "rollout",
    "raw_attention",
    "attgrad",
    "attcam",
    "gradsam",
    "legrad",
    "plus(generic)",
]


@pytest.mark.parametrize("library", ["timm", "hf"])
def test_fused_attention_gives_the_same(library: str) -> None:
    if library == "hf":
        pytest.importorskip("transformers")
        one, other = hf(), hf(attention="sdpa")
    else:
        one, other = timm(), timm()
        for stages, fused in ((one.layers, True), (other.layers, False)):
            for block in (block for stage in stages for block in stage.blocks):
                block.attn.fused_attn = fused
    x = images(one, 2)
    for spec in METHODS:
        result, expected = (vt.get_method(spec).attribute(model, x, target=2) for model in (one, other))
        within = 1e-5 if library == "hf" else 1e-10  # whose written-out softmax is a float32 whatever the model is
        assert (result - expected).abs().max() <= within * expected.abs().max()


def test_equal_weights_give_equal_maps_in_timm_and_torchvision() -> None:
    one, other = timm(), torchvision()
    names = {"patch_embed.proj": "features.0.0", "patch_embed.norm": "features.0.2", "head.fc": "head", "norm": "norm"}
    names |= {f"layers.1.downsample.{part}": f"features.2.{part}" for part in ("norm", "reduction")}
    names |= {f"layers.{s}.blocks.{b}": f"features.{1 + 2 * s}.{b}" for s in range(2) for b in range(2)}
    state = {}
    for name, weight in one.named_parameters():
        old, new = next((old, new) for old, new in names.items() if name.startswith(f"{old}."))
        state[(new + name[len(old) :]).replace("mlp.fc1", "mlp.0").replace("mlp.fc2", "mlp.3")] = weight
    assert not other.load_state_dict(state, strict=False).unexpected_keys
    x = images(one, 2)
    for spec in METHODS:
        method = vt.get_method(spec)
        same(method.attribute(one, x, target=2), method.attribute(other, x, target=2))


def test_a_model_around_a_swin_is_looked_through() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = timm(size=ODD)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + 1

    around = Around().eval()
    x = images(around.inner, 2)
    for spec in METHODS:
        method = vt.get_method(spec)
        same(method.attribute(around, x, target=0), method.attribute(around.inner, x, target=0))


def test_sub_networks_have_the_windows_of_their_blocks() -> None:
    slow = slow_of("timm_odd")
    sub = slow.view.suffix(1, slow.x)
    tokens = slow.view.forward_blocks(slow.view.embed(slow.x), 0, 1).detach()
    result = vt.get_method("generic").attribute(sub, tokens, target=1)
    same(result, slow.maps("generic(start=1)"))
    for layer in range(3):
        assert torch.equal(sub.windows(layer).patches, slow.view.windows(layer + 1).patches)


@pytest.mark.parametrize("spec", ["generic", "rollout", "gradsam"])
def test_half_precision_keeps_small_numbers(spec: str) -> None:
    model = timm()
    x = images(model, 1)
    full = vt.get_method(spec).attribute(model, x, target=1)
    half = vt.get_method(spec).attribute(model.half(), x.half(), target=1)
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(full.flatten(), half.double().flatten(), dim=0) > 0.999


def test_one_pass_answers_them_all() -> None:
    model = timm()
    x = images(model, 2)
    vt.wrap(model).verify(x)
    methods = [vt.get_method(method) for method in METHODS if method != "legrad"]
    context = Context(vt.wrap(model), x, Target.of(vt.wrap(model), 2, 1))
    runs: list[int] = []
    context.on_progress = runs.append
    compute_attributions(context, methods)
    assert runs == [2]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("rollout@vit_explain", "discard=0.9"),
        ("rollout(discard=0.5)", "discard=0.5"),
        ("grad_rollout(discard=0.5)", "discard=0.5"),
        ("grad_rollout@vit_explain", "pairs the first block with the last"),
        ("attention_flow", "between all tokens"),
        ("globenc", "between all tokens"),
        ("attcat", "between all tokens"),
    ],
)
def test_what_needs_all_pairs_is_refused(spec: str, why: str) -> None:
    model = timm()
    with pytest.raises(ModelError, match=f"inside windows.*{why}"):
        vt.get_method(spec).attribute(model, images(model, 1))


def test_windows_of_a_model_without_any_are_refused() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    assert model.windows(0) is None
    context = Context(model, images(model, 1), Target.of(model, 1, 0))
    with pytest.raises(ModelError, match="has no windows"):
        context.run_pass(Pass((Record("window_weights", _anything, (0,), grad=False),)))


def _anything(a: Activation) -> Tensor:
    return a.value
