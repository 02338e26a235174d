"""VTranM against per-head vectors written out and the full product of update maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference_vit
import vitreous as vt
from families import FAMILIES, golden, images, verified
from vitreous.errors import SpecError
from vitreous.methods.block_transitions import MLPWeights, Update
from vitreous.tracing import Context, Pass, Record, Target, activation_value
from zoo import EVERY


def attribute(spec: str, model: Any, x: Tensor, **options: Any) -> Tensor:
    return vt.get_method(spec).attribute(model, x, target=2, **options)


def softmax(x: Tensor) -> Tensor:
    return torch.exp(x) / torch.exp(x).sum(dim=-1, keepdim=True)


def cosine(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(dim=-1) / (one.square().sum(dim=-1).sqrt() * other.square().sum(dim=-1).sqrt())


def update_maps(
    model: Any, run: reference_vit.Run, gradients: list[Tensor], normalised: bool, length: bool, necc: bool
) -> list[Tensor]:
    """Two maps ``[B, N, N]`` per block: attention, then MLP."""
    result = []
    for layer, module in enumerate(model.blocks):
        attention, eye = run.attention[layer], torch.eye(run.attention[layer].shape[-1], dtype=torch.float64)
        before = run.norm1[layer] if normalised else run.inputs[layer]
        moved = reference_vit.brought(module, attention, run.values[layer])  # [B, H, i, j, D]
        weight = torch.ones_like(attention)
        if length:
            weight = weight * moved.norm(dim=-1) / before.norm(dim=-1)[:, None, None]
        if necc:
            weight = weight * softmax(cosine(moved, before[:, None, None]))
        result.append(eye + (gradients[layer].clamp(min=0) * attention * weight).mean(dim=1))
        before = reference_vit.norm(module.norm2, run.middle[layer]) if normalised else run.middle[layer]
        branch = run.outputs[layer] - run.middle[layer]
        diagonal = torch.ones_like(branch[..., 0])
        if length:
            diagonal = diagonal * branch.norm(dim=-1) / before.norm(dim=-1)
        if necc:
            diagonal = diagonal * softmax(cosine(before, branch))
        result.append(eye + torch.diag_embed(diagonal))
    return result


def reference(
    family: str, x: Tensor, value: str, normalised: bool = False, length: bool = True, necc: bool = True
) -> Tensor:
    model: Any = FAMILIES[family]().double()
    run = reference_vit.forward(model, x)
    score = run.logits if value == "logit" else softmax(run.logits)
    wanted = [*run.attention, *([] if run.pool is None else [run.pool])]
    gradients = torch.autograd.grad(score[:, 2].sum(), wanted)
    contribution = torch.diag_embed(run.inputs[0].norm(dim=-1) if length else torch.ones_like(run.inputs[0][..., 0]))
    for update in update_maps(model, run, list(gradients), normalised, length, necc):
        contribution = update @ contribution
    prefix = getattr(model, "num_prefix_tokens", 0)
    if run.pool is not None:
        row = (run.pool * gradients[-1]).clamp(min=0).mean(dim=1)
    elif model.global_pool == "avg":
        count = contribution.shape[1]
        row = torch.full((1, 1, count), 1.0, dtype=torch.float64)
        if not model.pool_include_prefix:
            row[..., :prefix] = 0
        row = row / row.sum()
    else:
        row = torch.zeros(1, 1, contribution.shape[1], dtype=torch.float64)
        row[..., : 2 if family == "deit_distilled" else 1] = 0.5 if family == "deit_distilled" else 1
    return (row @ contribution)[:, 0, prefix:].detach()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("spec", "switches"),
    [
        ("vtranm", {"value": "prob"}),
        ("tokentm(output=logit)", {"value": "logit"}),
        ("vtranm(original=normalised)", {"value": "prob", "normalised": True}),
        ("vtranm(necc=false)", {"value": "prob", "necc": False}),
        ("vtranm(length=false)", {"value": "prob", "length": False}),
        ("vtranm(length=false, necc=false)", {"value": "prob", "length": False, "necc": False}),
    ],
)
def test_equals_the_full_product_of_explicit_maps(family: str, spec: str, switches: dict[str, Any]) -> None:
    model = FAMILIES[family]().double()
    x = images(model, 2)
    actual = attribute(spec, model, x)
    expected = reference(family, x, **switches)
    assert (actual.flatten(1) - expected).abs().max() <= 1e-10 * expected.abs().max()


def test_baseline_of_the_ablation_is_the_map_of_the_first_block() -> None:
    """Equation 8 at the input, nothing aggregated: the row of I + mean_h (dA)+ A."""
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    run = reference_vit.forward(model, x)
    (gradient,) = torch.autograd.grad(softmax(run.logits)[:, 2].sum(), run.attention[:1])
    expected = (gradient.clamp(min=0) * run.attention[0]).mean(dim=1)[:, 0, 1:]
    actual = attribute("vtranm(aggregate=false, length=false, necc=false)", model, x)
    torch.testing.assert_close(actual.flatten(1), expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "gap", "siglip"])
def test_aggregation_alone_is_generic(family: str) -> None:
    """Without lengths and cosines an MLP doubles everything and attention does what the generic method does."""
    model = FAMILIES[family]().double()
    x = images(model, 2)
    actual = attribute("vtranm(length=false, necc=false, output=logit)", model, x)
    torch.testing.assert_close(actual, attribute("generic", model, x) * 2**3, rtol=1e-10, atol=0)


def test_update_map_of_the_mlp_is_diagonal_and_that_of_attention_is_not() -> None:
    model = FAMILIES["vit"]().double()
    vision_model, x = vt.wrap(model), images(model, 2)
    keeps = (
        Record("block", Update("residual", True, True), (1,)),
        Record("block", MLPWeights("residual", True, True), (1,), grad=False),
    )
    cache = Context(vision_model, x, Target.of(vision_model, 2, 2, output="logit")).run_pass(Pass(keeps))
    run = reference_vit.forward(model, x)
    gradients = torch.autograd.grad(run.logits[:, 2].sum(), run.attention)
    maps = update_maps(model, run, list(gradients), normalised=False, length=True, necc=True)
    eye = torch.eye(17, dtype=torch.float64)
    torch.testing.assert_close(cache[keeps[0]][0], (maps[2] - eye).detach(), rtol=0, atol=1e-12)
    assert (maps[2] * (1 - eye)).abs().max() > 0
    assert torch.equal(maps[3], torch.diag_embed(maps[3].diagonal(dim1=1, dim2=2)))
    torch.testing.assert_close(eye + torch.diag_embed(cache[keeps[1]][0]), maps[3].detach(), rtol=0, atol=1e-12)


def test_extras_are_attention_and_transformation_weights() -> None:
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    _, extras = vt.get_method("vtranm").attribute(model, x, target=2, extras=True)
    run = reference_vit.forward(model, x)
    assert {name: tuple(extra.shape) for name, extra in extras.items()} == dict.fromkeys(
        ("attention", "weights", "mlp_weights"), (2, 3, 4, 4)
    )
    for layer, module in enumerate(model.blocks):
        expected = run.attention[layer].mean(dim=1)[:, 0, 1:]
        torch.testing.assert_close(extras["attention"][:, layer].flatten(1), expected.detach())
        moved = reference_vit.brought(module, run.attention[layer], run.values[layer])[
            :, :, 0
        ]  # no norm: the same for all rows
        before = run.inputs[layer].unsqueeze(1)
        weights = moved.norm(dim=-1) / before.norm(dim=-1) * softmax(cosine(moved, before))
        torch.testing.assert_close(extras["weights"][:, layer].flatten(1), weights.mean(dim=1)[:, 1:].detach())


def test_the_value_is_a_parameter_of_the_method() -> None:
    """The probability, as in the paper, whatever the call asks for; or what the call asks for."""
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    prob = attribute("vtranm", model, x)
    assert torch.equal(prob, attribute("vtranm", model, x, output="logit"))
    assert torch.equal(prob, attribute("vtranm(output=none)", model, x, output="prob"))
    logit = attribute("vtranm(output=none)", model, x)
    assert torch.equal(logit, attribute("vtranm(output=logit)", model, x, output="prob"))
    assert (logit - prob).abs().max() > 1e-3 * prob.abs().max()
    callable_target = vt.get_method("vtranm").attribute(model, x, target=lambda logits: logits[:, 2])
    torch.testing.assert_close(callable_target, logit, rtol=1e-10, atol=0)


def test_cost_is_one_forward_and_one_backward() -> None:
    model: Any = FAMILIES["vit"]()
    x = images(model, 2)
    runs: list[str] = []

    def seen(module: nn.Module, args: Any, output: Tensor) -> None:
        runs.append("forward")
        if output.requires_grad:
            output.register_hook(lambda gradient: runs.append("backward"))

    model.blocks[1].register_forward_hook(seen)
    verified(model)
    runs.clear()
    attribute("vtranm", model, x)
    assert runs == ["forward", "backward"]


@pytest.mark.parametrize("family", ["hf_vit", "hf_vit_eager", "hf_dinov2", "tv_vit", "beit", "eva02"])
def test_other_libraries_agree_with_vectors_written_out(family: str) -> None:
    """One block's weights from the values and the projection of the view, each vector in the open."""
    model = vt.wrap(EVERY[family]())
    model.module.double()
    x = images(model, 2)
    _, extras = vt.get_method("vtranm(necc=false)").attribute(model, x, target=2, extras=True)
    keeps = (
        Record("attn_values", activation_value, (1,), grad=False),
        Record("resid_pre", activation_value, (1,), grad=False),
        Record("attn_weights", activation_value, (1,), grad=False),
    )
    values, stream, attention = (
        part[0] for part in map(Context(model, x, Target.of(model, 2, 2)).run_pass(Pass(keeps)).__getitem__, keeps)
    )
    reported = model.weights(1)
    mean = torch.zeros(stream.shape[:2], dtype=torch.float64)
    for head in range(model.num_heads):
        alone = torch.zeros_like(values)
        alone[:, head] = values[:, head]
        vectors = alone.transpose(1, 2).flatten(2)
        if reported.inner is not None:
            deviation = reported.inner.deviation((attention @ values).transpose(1, 2).flatten(2))
            vectors = reported.inner.linear(vectors) / deviation
        mean += (vectors @ reported.projection.T).norm(dim=-1) / stream.norm(dim=-1) / model.num_heads
    torch.testing.assert_close(
        extras["weights"][:, 1].flatten(1), mean[:, model.num_prefix_tokens :], rtol=1e-9, atol=0
    )


def test_golden_model() -> None:
    model, x = golden()
    actual = attribute("vtranm", model, x)
    assert (actual > 0).all()
    run = reference_vit.forward(model, x)
    gradients = torch.autograd.grad(softmax(run.logits)[:, 2].sum(), run.attention)
    row = torch.zeros(1, 197, dtype=torch.float64)
    row[0, 0] = 1
    for update in reversed(update_maps(model, run, list(gradients), normalised=False, length=True, necc=True)):
        row = (row.unsqueeze(1) @ update).squeeze(1)
    expected = (row * run.inputs[0].norm(dim=-1))[:, 1:].detach()
    assert (actual.flatten(1) - expected).abs().max() <= 1e-12 * expected.max()


@pytest.mark.parametrize("spec", ["vtranm(original=other)", "vtranm(output=odds)"])
def test_words_that_mean_nothing_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="is not one of"):
        vt.get_method(spec)
