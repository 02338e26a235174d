"""Methods along a path, against their definitions with all matrices written out, one image and one point at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import reference_vit
import vitreous as vt
from families import FAMILIES, images

KINDS = ["vit", "deit_distilled", "deit3", "registers", "gap", "gap_all", "siglip", "nonsquare", "qk_norm"]
CLASS = 3


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param]().double()


def forward(model: Any, tokens: Tensor, first: int = 0, scale: float | None = None) -> reference_vit.Run:
    """Run tokens that enter a block; with ``scale``, the last block's attention is that of a leaf, scaled."""
    run, x = reference_vit.Run(torch.empty(0)), tokens
    for module in model.blocks[first:-1]:
        x = reference_vit.block(module, x, run)
    last = model.blocks[-1]
    x = reference_vit.block(last, x, run)
    if scale is not None:
        run.attention[-1] = (scale * run.attention[-1]).detach().requires_grad_()
        mixed = reference_vit.norm(last.attn.norm, (run.attention[-1] @ run.values[-1]).transpose(1, 2).flatten(2))
        middle = run.inputs[-1] + reference_vit.scaled(last.ls1, reference_vit.linear(last.attn.proj, mixed))
        x = middle + reference_vit.scaled(last.ls2, reference_vit.mlp(last.mlp, reference_vit.norm(last.norm2, middle)))
    run.logits = reference_vit.finish(model, x, run)
    return run


def attentions(run: reference_vit.Run) -> list[Tensor]:
    """Those of all blocks, and of the pooling where it attends."""
    return [*run.attention, *([] if run.pool is None else [run.pool])]


def gradients(run: reference_vit.Run) -> list[Tensor]:
    return list(torch.autograd.grad(run.logits[0, CLASS], attentions(run), retain_graph=True))


def integrated(model: Any, start: Tensor, steps: int, first: int = 0) -> Tensor:
    """``W``: all rows."""
    total = 0
    for t in torch.linspace(0, 1, steps, dtype=torch.float64):
        x = t * start if first else reference_vit.embed(model, t * start)
        total = total + gradients(forward(model, x, first))[-1][0]
    return (total / steps).clamp(min=0).mean(dim=0)


def read(model: Any, matrix: Tensor) -> Tensor:
    """The row that the head reads, patches only."""
    prefix = model.num_prefix_tokens
    if len(matrix) == 1 or (model.global_pool == "token" and not hasattr(model, "head_dist")):
        row = matrix[0]
    elif hasattr(model, "head_dist"):
        row = (matrix[0] + matrix[1]) / 2
    else:
        row = matrix[0 if model.pool_include_prefix else prefix :].mean(dim=0)
    return row[prefix:]


def assert_same(spec: str, model: Any, definition: Any) -> None:
    """Compare a batch of two with the definition for each of them."""
    x = images(model, 2)
    actual = vt.get_method(spec).attribute(model, x, target=CLASS)
    for image, item in zip(x, actual, strict=True):
        expected = definition(image[None])
        assert expected.abs().max() > 0
        assert (item.flatten() - expected).abs().max() <= 1e-9 * expected.abs().max()


def transitions(model: Any, start: Tensor, steps: int, down_to: int, twice: bool = False, first: int = 0) -> Tensor:
    """TAM: the chain of all states at once."""
    run = forward(model, start if first else reference_vit.embed(model, start), first)
    means = [attention[0].mean(dim=0) for attention in attentions(run)]
    state = means[-1]
    for mean in reversed(means[down_to:] if twice else means[down_to:-1]):
        state = state @ mean + state
    return read(model, state * integrated(model, start, steps, first))


@pytest.mark.parametrize("down_to", [0, 1, 2])
def test_tam(model: Any, down_to: int) -> None:
    assert_same(f"tam(start={down_to}, steps=4)", model, lambda x: transitions(model, x, 4, down_to))


def test_tam_at_the_image_alone(model: Any) -> None:
    """One step is no path."""

    def definition(x: Tensor) -> Tensor:
        run = forward(model, reference_vit.embed(model, x))
        means = [attention[0].mean(dim=0) for attention in attentions(run)]
        state = means[-1]
        for mean in reversed(means[:-1]):
            state = state @ mean + state
        return read(model, state * gradients(run)[-1][0].clamp(min=0).mean(dim=0))

    assert_same("tam(start=0, steps=1)", model, definition)


@pytest.mark.parametrize("kind", ["vit", "gap", "deit_distilled"])
def test_tam_with_the_last_block_twice(kind: str) -> None:
    model = FAMILIES[kind]().double()
    assert_same("tam(start=1, steps=3, twice=true)", model, lambda x: transitions(model, x, 3, 1, twice=True))


def test_tam_of_sub_networks() -> None:
    """There the path leads from no tokens to the tokens."""
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    _, extras = vt.get_method("plus(tam(start=0, steps=3))").attribute(model, x, target=CLASS, extras=True)
    inputs = reference_vit.forward(model, x).inputs
    for first in (1, 2):
        expected = transitions(model, inputs[first], 3, 0, first=first)
        assert torch.allclose(extras["layers"][0, first].flatten(), expected, rtol=1e-9, atol=1e-18)


def importance(attention: Tensor, gradient: Tensor) -> Tensor:
    """``I_h``, head by head."""
    sizes = torch.stack([(a.T @ g).abs().mean() for a, g in zip(attention, gradient, strict=True)])
    return sizes / sizes.sum()


@pytest.mark.parametrize("start", [0, 2])
def test_bt_h(model: Any, start: int) -> None:
    def definition(x: Tensor) -> Tensor:
        run = forward(model, reference_vit.embed(model, x))
        actual = []
        for attention, gradient in zip(attentions(run), gradients(run), strict=True):
            weights = importance(attention[0], gradient[0])
            actual.append(sum(w * a for w, a in zip(weights, attention[0], strict=True)))
        return read(model, integrated(model, x, 3) * accumulated(actual, start))

    assert_same(f"bt_h(start={start}, steps=3)", model, definition)


@pytest.mark.parametrize("start", [0, 1])
def test_bt_t(model: Any, start: int) -> None:
    def definition(x: Tensor) -> Tensor:
        run = forward(model, reference_vit.embed(model, x))
        actual = []
        for module, attention, values, stream in zip(model.blocks, run.attention, run.values, run.inputs, strict=True):
            attn, mixed = module.attn, (attention @ values)[0].transpose(0, 1).flatten(1)
            joined = values[0].transpose(0, 1).flatten(1)  # the values of all heads, [N, D]
            deviation = torch.ones(len(mixed), dtype=torch.float64)
            if hasattr(attn.norm, "weight"):  # a norm of what the heads bring divides by the receiver's deviation
                deviation = (mixed.var(dim=1, unbiased=False) + attn.norm.eps).sqrt()
                joined = (joined - joined.mean(dim=1, keepdim=True)) * attn.norm.weight
            moved = reference_vit.scaled(module.ls1, joined @ attn.proj.weight.T)
            ratio = moved.norm(dim=1) / stream[0].norm(dim=1)
            actual.append(attention[0].mean(dim=0) * ratio[None, :] / deviation[:, None])
        if run.pool is not None:
            actual.append(run.pool[0].mean(dim=0))
        return read(model, integrated(model, x, 3) * accumulated(actual, start).abs())

    assert_same(f"bt_t(start={start}, steps=3)", model, definition)


def accumulated(matrices: list[Tensor], start: int) -> Tensor:
    """``R <- R + C R`` upwards; a pooling by attention has no row of its own in R before it."""
    pool = matrices.pop() if len(matrices[-1]) == 1 else None
    total = torch.eye(len(matrices[0]), dtype=torch.float64)
    for matrix in matrices[start:]:
        total = total + matrix @ total
    return total if pool is None else pool @ total


@pytest.mark.parametrize("mlp", [True, False])
def test_inflow(model: Any, mlp: bool) -> None:
    def definition(x: Tensor) -> Tensor:
        run = forward(model, reference_vit.embed(model, x))
        final = gradients(run)
        product = torch.eye(run.inputs[0].shape[1], dtype=torch.float64)
        for layer in range(3):
            attention = run.attention[layer][0]
            fused = torch.stack(
                [w * a for w, a in zip(importance(attention, final[layer][0]), attention, strict=True)]
            ).amax(dim=0)
            score = own_score(model, run.outputs[layer])
            (gradient,) = torch.autograd.grad(score, run.attention[layer], retain_graph=True)
            visible = (gradient[0].mean(dim=0) * fused).clamp(min=0)
            stream, middle, output = run.inputs[layer][0], run.middle[layer][0], run.outputs[layer][0]
            one = torch.stack([stream.norm(dim=1), (middle - stream).norm(dim=1)])
            two = torch.stack([middle.norm(dim=1), (output - middle).norm(dim=1)])
            (u, w), (v, z) = one / one.sum(dim=0), two / two.sum(dim=0)
            ratio = (z / v) / (z / v).sum()
            step = visible @ torch.diag(w) + torch.diag(u)
            if mlp:
                step = step @ torch.diag(ratio * z + v)
            product = (step / step.sum(dim=1, keepdim=True)) @ product
        if run.pool is not None:
            weights = importance(run.pool[0], final[-1][0])
            fused = torch.stack([w * a for w, a in zip(weights, run.pool[0], strict=True)]).amax(dim=0)
            row = (final[-1][0].mean(dim=0) * fused).clamp(min=0)
            product = row / row.sum() @ product
        return read(model, product)

    assert_same(f"inflow(mlp={str(mlp).lower()})", model, definition)


def own_score(model: Any, tokens: Tensor) -> Tensor:
    """The head on the mean of the normed tokens; attention pooling reads each of them alone."""
    if model.attn_pool is not None:
        alone = [
            reference_vit.finish(model, token[:, None], reference_vit.Run(tokens)) for token in tokens.unbind(dim=1)
        ]
        return torch.stack(alone).mean(dim=0)[0, CLASS]
    mean = reference_vit.norm(model.fc_norm, reference_vit.norm(model.norm, tokens)).mean(dim=1)
    heads = [model.head, model.head_dist] if hasattr(model, "head_dist") else [model.head]
    return torch.stack([reference_vit.linear(head, mean) for head in heads]).mean(dim=0)[0, CLASS]


def test_iia(model: Any) -> None:
    def definition(x: Tensor) -> Tensor:
        way = [0.0, 0.5, 1.0]
        runs = []
        for t in way:
            for u in way:
                run = forward(model, reference_vit.embed(model, t * x), scale=u)
                pairs = zip(attentions(run), gradients(run), strict=True)
                runs.append([(a[0] * g[0]).clamp(min=0).mean(dim=0) for a, g in pairs])
        means = [torch.stack(actual).mean(dim=0) for actual in zip(*runs, strict=True)]
        pool = means.pop() if len(means) > 3 else None
        product = torch.eye(len(means[0]), dtype=torch.float64)
        for mean in means:
            step = mean + torch.eye(len(mean), dtype=torch.float64)
            product = (step / step.sum(dim=1, keepdim=True)) @ product
        return read(model, product if pool is None else pool @ product)

    assert_same("iia(steps=2)", model, definition)
