"""AttIN, GlobEnc and ALTI against shares of H x N x N x D numbers, written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import reference_vit
import vitreous as vt
from families import FAMILIES, golden, images, verified
from vitreous.benchmark.protocol import read
from vitreous.errors import SpecError
from vitreous.methods import value_weighted as mixing
from vitreous.methods import value_weighted as shares
from vitreous.methods.value_weighted import Matrix, Row
from vitreous.tracing import Block, Context, Pass, Record, Target
from zoo import EVERY

MEASURES = ("weighted_norms", "relative_norms", "norms_with_residual", "norms_after_block", "relative_proximity")


def matrices(module: Any, run: reference_vit.Run, layer: int) -> dict[str, Tensor]:
    """The four matrices ``[B, N, N]`` of a block, from explicit shares."""
    attention = run.attention[layer]
    moved = (attention.unsqueeze(-1) * reference_vit.brought(module, attention, run.values[layer])).sum(dim=1)
    visible = reference_vit.block_shares(module, run, layer)
    through = visible + reference_vit.shares_after_norm(module, visible, run.middle[layer])
    output = run.outputs[layer].unsqueeze(2)
    near = (output.abs().sum(dim=-1) - (output - through).abs().sum(dim=-1)).clamp(min=0)
    total = near.sum(dim=-1, keepdim=True)
    agreed = torch.where(total > 0, near / torch.where(total > 0, total, 1), 0)
    return {
        "weighted_norms": moved.norm(dim=-1),
        "relative_norms": moved.norm(dim=-1) / moved.norm(dim=-1).sum(dim=-1, keepdim=True),
        "norms_with_residual": visible.norm(dim=-1),
        "norms_after_block": through.norm(dim=-1),
        "relative_proximity": agreed,
    }


def read_row(family: str, model: Any, matrix: Tensor) -> Tensor:
    """The row that the model reads, prefix dropped."""
    prefix = model.num_prefix_tokens
    if family == "deit_distilled":
        row = matrix[:, :2].mean(dim=1)
    elif family == "gap_all":
        row = matrix.mean(dim=1)
    elif family in ("gap", "siglip"):
        row = matrix[:, prefix:].mean(dim=1)
    else:
        row = matrix[:, 0]
    return row[:, prefix:]


def visible(model: Any, x: Tensor, reduce: Any) -> list[Tensor]:
    vision_model = vt.wrap(model)
    keep = Record("block", reduce, tuple(range(vision_model.depth)), grad=False)
    return Context(vision_model, x, Target.of(vision_model, len(x), 1)).run_pass(Pass((keep,)))[keep]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_shares_and_biases_of_a_block_are_what_is_decomposed(family: str) -> None:
    """Completeness of the reference: all shares and the biases are the stream, before and after the second norm."""
    model: Any = FAMILIES[family]().double()
    run = reference_vit.forward(model, images(model, 2))
    for layer, module in enumerate(model.blocks):
        parts = reference_vit.block_shares(module, run, layer)
        inner = module.attn.norm
        own = torch.zeros(inner.bias.shape if hasattr(inner, "bias") else (24,), dtype=torch.float64)
        own = own + inner.bias if hasattr(inner, "bias") else own
        bias = reference_vit.scaled(module.ls1, reference_vit.linear(module.attn.proj, own))
        torch.testing.assert_close(parts.sum(dim=2) + bias, run.middle[layer], rtol=0, atol=1e-11)
        normed = reference_vit.shares_after_norm(
            module, torch.cat([parts, bias.expand_as(parts[:, :, :1])], 2), run.middle[layer]
        )
        beta = reference_vit.scaled(module.ls2, module.norm2.bias)
        expected = reference_vit.scaled(module.ls2, reference_vit.norm(module.norm2, run.middle[layer]))
        torch.testing.assert_close(normed.sum(dim=2) + beta, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("measure", MEASURES)
@torch.no_grad()
def test_matrices_and_rows_equal_explicit_shares(family: str, measure: str) -> None:
    model: Any = FAMILIES[family]().double()
    x = images(model, 2)
    run = reference_vit.forward(model, x)
    function = getattr(mixing, measure)
    for layer, (complete, row) in enumerate(
        zip(visible(model, x, Matrix(function)), visible(model, x, Row(function)), strict=True)
    ):
        expected = matrices(model.blocks[layer], run, layer)[measure]
        torch.testing.assert_close(complete, expected, rtol=0, atol=1e-7)  # the root of a rounded square
        torch.testing.assert_close(
            row[:, model.num_prefix_tokens :], read_row(family, model, expected), rtol=0, atol=1e-7
        )


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_single_precision_keeps_four_digits(family: str) -> None:
    """Squares of lengths cancel; what is lost stays small next to the longest share of a row."""
    model: Any = FAMILIES[family]()
    x = images(model, 2)
    single = visible(model, x, Matrix(mixing.norms_after_block))
    double = visible(model.double(), x.double(), Matrix(mixing.norms_after_block))
    for one, other in zip(single, double, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.max()


def rolled(family: str, model: Any, run: reference_vit.Run, measure: str, start: int, residual: float) -> Tensor:
    """The full product of all matrices, then its row."""
    product = torch.eye(run.attention[0].shape[-1], dtype=torch.float64)
    for layer in range(start, len(model.blocks)):
        matrix = matrices(model.blocks[layer], run, layer)[measure]
        product = (residual * torch.eye(matrix.shape[-1], dtype=torch.float64) + (1 - residual) * matrix) @ product
    if run.pool is not None:
        return (run.pool.mean(dim=1) @ product)[:, 0]
    return read_row(family, model, product)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("start", "residual"), [(0, 0.0), (1, 0.5)])
@torch.no_grad()
def test_rollouts_equal_the_full_product(family: str, start: int, residual: float) -> None:
    model: Any = FAMILIES[family]().double()
    x = images(model, 2)
    run = reference_vit.forward(model, x)
    alti = vt.get_method(f"alti(start={start}, residual={residual})").attribute(model, x).flatten(1)
    torch.testing.assert_close(
        alti, rolled(family, model, run, "relative_proximity", start, residual), rtol=0, atol=1e-9
    )
    attin = vt.get_method(f"attin_rollout(start={start}, residual={residual})").attribute(model, x).flatten(1)
    expected = rolled(family, model, run, "relative_norms", start, residual)
    torch.testing.assert_close(attin, expected, rtol=0, atol=1e-9)
    if residual == 0:  # a product of lengths is known up to a factor per image
        actual = vt.get_method(f"globenc(start={start})").attribute(model, x).flatten(1)
        expected = rolled(family, model, run, "norms_after_block", start, residual)
        scale = expected.sum(dim=1, keepdim=True) / actual.sum(dim=1, keepdim=True)
        torch.testing.assert_close(actual * scale / expected, torch.ones_like(actual), rtol=1e-8, atol=0)


@pytest.mark.parametrize("family", EVERY)
@torch.no_grad()
def test_rows_of_alti_sum_to_one_or_are_zero(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    if model.attention == "windowed":
        pytest.skip("attends inside windows")
    for matrix in visible(model, images(model, 2), Matrix(mixing.relative_proximity)):
        total = matrix.sum(dim=-1)
        assert (((total - 1).abs() < 1e-5) | (total == 0)).all()
        assert (matrix >= 0).all()


@pytest.mark.parametrize(
    "family", ["hf_vit", "hf_vit_eager", "hf_dinov2_registers", "hf_clip", "tv_vit", "beit", "eva02"]
)
@torch.no_grad()
def test_other_libraries_agree_with_shares_written_out(family: str) -> None:
    """From the parts that a pass shows and the weights that a view tells: every share in the open."""
    model = vt.wrap(EVERY[family]())
    model.module.double()
    x = images(model, 2)
    actual = visible(model, x, Matrix(mixing.norms_after_block))
    for layer, matrix in enumerate(visible(model, x, explicit_lengths)):
        torch.testing.assert_close(actual[layer], matrix, rtol=0, atol=1e-7)


def explicit_lengths(block: Block) -> Tensor:
    weights = block.model.weights(block.layer)
    mixed = (block.attn_weights @ block.attn_values).transpose(1, 2).flatten(2)
    moved = torch.einsum("bhij,bhjd->bijhd", block.attn_weights, block.attn_values).flatten(3)
    if weights.inner is not None:
        moved = weights.inner.linear(moved) / weights.inner.deviation(mixed).unsqueeze(2)
    parts = moved @ weights.projection.T
    places = torch.arange(parts.shape[1])
    parts[:, places, places] += block.resid_pre
    normed = weights.norm2.linear(parts) / weights.norm2.deviation(block.resid_mid).unsqueeze(2)
    lengths: Tensor = (parts + (normed if weights.scale is None else normed * weights.scale)).norm(dim=-1)
    return lengths


def test_writing_shares_out_in_small_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    batch_sizes = vt.get_method("alti").attribute(model, x)
    monkeypatch.setattr(shares, "_MOST_NUMBERS", 2 * 17 * 24 * 3)
    torch.testing.assert_close(vt.get_method("alti").attribute(model, x), batch_sizes, rtol=0, atol=1e-14)


def test_layer_terms_are_rows_and_cost_nothing_more() -> None:
    model: Any = FAMILIES["vit"]().double()
    x = images(model, 2)
    run = reference_vit.forward(model, x)
    runs: list[int] = []
    model.patch_embed.register_forward_hook(lambda *_: runs.append(1))
    verified(model)
    specs = {
        "plus(globenc)": "norms_after_block",
        "plus(alti)": "relative_proximity",
        "plus(attin(residual=true))": "norms_with_residual",
    }
    for spec, measure in specs.items():
        runs.clear()
        actual = vt.get_method(spec).attribute(model, x, target=1).flatten(1)
        assert len(runs) == 1
        expected = sum(matrices(m, run, layer)[measure][:, 0, 1:] for layer, m in enumerate(model.blocks))
        torch.testing.assert_close(actual, expected.detach(), rtol=0, atol=1e-7)


@torch.no_grad()
def test_golden_model() -> None:
    """196 patches in float64: AttIN of the last block against explicit vectors of the row alone."""
    model, x = golden()
    run = reference_vit.forward(model, x)
    actual = vt.get_method("attin").attribute(model, x).flatten()
    values, attention = run.values[3][0], run.attention[3][0, :, 0]
    expected = torch.zeros(197, dtype=torch.float64)
    for token in range(197):
        vector = torch.cat([attention[head, token] * values[head, token] for head in range(3)])
        expected[token] = (model.blocks[3].attn.proj.weight @ vector).norm()
    torch.testing.assert_close(actual, expected[1:], rtol=1e-9, atol=0)


def test_globenc_of_a_deep_network_stays_finite() -> None:
    """Products of lengths over 24 blocks of wide vectors would leave single precision."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model: Any = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=24, num_heads=3, num_classes=5, pos_embed="learn"
    ).eval()
    with torch.no_grad():
        model.pos_embed.mul_(1e5)
    actual = vt.get_method("globenc").attribute(model, images(model, 1), target=0)
    assert torch.isfinite(actual).all()
    assert actual.max() > 0


@torch.no_grad()
def test_attin_rollout_is_the_rollout_of_every_block_that_the_protocol_of_skipplus_names() -> None:
    """Half of each token passes by each block unless told otherwise; the last block alone is another map."""
    assert read("skipplus").methods["AttIN o Rollout"] == "attin_rollout"
    model: Any = FAMILIES["vit"]().double()
    x = images(model, 2)
    actual = vt.get_method("attin_rollout").attribute(model, x).flatten(1)
    run = reference_vit.forward(model, x)
    torch.testing.assert_close(actual, rolled("vit", model, run, "relative_norms", 0, 0.5), rtol=0, atol=1e-9)
    last = vt.get_method("attin").attribute(model, x).flatten(1)
    assert (actual / actual.sum() - last / last.sum()).abs().max() > 1e-3
    terms = vt.get_method("plus(attin_rollout)").attribute(model, x).flatten(1)
    rows = [matrices(m, run, layer)["relative_norms"][:, 0, 1:] for layer, m in enumerate(model.blocks)]
    torch.testing.assert_close(terms, torch.stack(rows).sum(dim=0), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["attin_rollout", "globenc", "alti"])
def test_a_residual_outside_its_range_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="residual=1"):
        vt.get_method(f"{name}(residual=1.0)")
