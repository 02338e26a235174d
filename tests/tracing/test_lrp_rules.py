"""Relevance rules one by one: each against its definition written with loops, and what it keeps of the relevance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import SpecError, TracingError
from vitreous.tracing import Composite, Context, Pass, Record, Target, activation_grad
from vitreous.tracing.rules import Call, Flows
from vitreous.tracing.rules.composites import (
    DEFAULTS,
    ORIGINAL,
    OURS,
    VOCABULARY,
    Add,
    SignSplit,
    StreamNorm,
    composed,
)
from vitreous.tracing.rules.lrp import (
    AlphaBeta,
    Epsilon,
    Factors,
    Flat,
    Gamma,
    Halves,
    Identity,
    MeanShare,
    NormShare,
    SumShare,
    UniformAttention,
    ValueAttention,
    WSquare,
    ZBox,
    safe,
)
from zoo import EVERY


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relevance(rule: Any, kind: str, func: Any, *args: Any, seed: int = 9, **kwargs: Any) -> tuple[Any, ...]:
    """Return the output of an operation under a rule, the relevance sent, and what arrives at each operand."""
    leaves = [arg.requires_grad_() if isinstance(arg, Tensor) and arg.ndim > 1 else arg for arg in args]
    if kind in ("linear", "embedding"):
        leaves[1:] = [leave.detach() if isinstance(leave, Tensor) else leave for leave in leaves[1:]]
    out = rule(Call(kind, func, tuple(leaves), kwargs))
    sent = numbers(*out.shape, seed=seed)
    wanted = [leave for leave in leaves if isinstance(leave, Tensor) and leave.requires_grad]
    torch.testing.assert_close(out.detach(), func(*args, **kwargs).detach())
    return out.detach(), sent, *torch.autograd.grad(out, wanted, sent)


# -- layers ------------------------------------------------------------------------------------------------------------


def signed(value: Tensor, eps: float) -> Tensor:
    return value + eps * (1 if value >= 0 else -1)


def slow(name: str, x: Tensor, weight: Tensor, bias: Tensor, sent: Tensor) -> Tensor:
    """Each rule for one input vector, input by input and output by output."""
    arrived = torch.zeros_like(x)
    low, upper = x.min(), x.max()
    for j in range(len(weight)):
        w, b = weight[j], bias[j]
        if name == "epsilon":
            z = signed((x * w).sum() + b, 1e-6)
            arrived += x * w / z * sent[j]
        elif name.startswith("alphabeta"):
            alpha = float(name[9:])
            up, down = (x * w).clamp(min=0), (x * w).clamp(max=0)
            arrived += alpha * up / (up.sum() + b.clamp(min=0) + 1e-6) * sent[j]
            if alpha > 1:
                arrived -= (alpha - 1) * down / (down.sum() + b.clamp(max=0) - 1e-6) * sent[j]
        elif name.startswith("gamma"):
            gamma, z = float(name[5:]), (x * w).sum() + b
            part, same = x * w, torch.sign(z)
            part = part + gamma * torch.where(torch.sign(part) == same, part, 0)
            offset = b + gamma * (b if torch.sign(b) == same else 0)
            arrived += part / signed(part.sum() + offset, 1e-6) * sent[j]
        elif name == "zbox":
            part = x * w - low * w.clamp(min=0) - upper * w.clamp(max=0)
            arrived += part / (part.sum() + 1e-9) * sent[j]
        elif name == "flat":
            arrived += sent[j] / len(x)
        elif name == "wsquare":
            arrived += w**2 / ((w**2).sum() + 1e-12) * sent[j]
        elif name == "ours":
            part = (x * w).clamp(min=0)
            arrived += part * safe(sent[j], part.sum())
        elif name == "original":
            part = (x * w).clamp(min=0)
            for chosen in (x > 0, x < 0):
                arrived += torch.where(chosen, part, 0) * safe(sent[j], part[chosen].sum())
    return arrived


LAYERS = {
    "epsilon": Epsilon(),
    "alphabeta1": AlphaBeta(1, 0),
    "alphabeta2": AlphaBeta(2, 1),
    "gamma0.25": Gamma(0.25),
    "gamma3": Gamma(3.0),
    "zbox": ZBox(),
    "flat": Flat(),
    "wsquare": WSquare(),
    "ours": SignSplit(),
    "original": SignSplit(apart=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_linear_layer(name: str) -> None:
    x, weight, bias = numbers(3, 6), numbers(4, 6, seed=1), numbers(4, seed=2)
    _, sent, arrived = relevance(LAYERS[name], "linear", F.linear, x, weight, bias)
    for row in range(3):
        expected = slow(name, x[row].detach(), weight, bias, sent[row])
        torch.testing.assert_close(arrived[row], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_a_convolution_is_a_linear_layer_of_patches(name: str) -> None:
    x, weight, bias = numbers(2, 3, 4, 4), numbers(5, 3, 2, 2, seed=1), numbers(5, seed=2)
    _, sent, arrived = relevance(LAYERS[name], "embedding", F.conv2d, x, weight, bias, 2)
    if name == "zbox":  # its bounds are those of the whole image
        pytest.skip("compared in the next test")
    for row in range(2):
        for down in range(2):
            for column in range(2):
                at = (slice(None), slice(2 * down, 2 * down + 2), slice(2 * column, 2 * column + 2))
                expected = slow(
                    name, x[row][at].detach().flatten(), weight.flatten(1), bias, sent[row, :, down, column]
                )
                torch.testing.assert_close(arrived[row][at].flatten(), expected, rtol=1e-9, atol=1e-12)


def test_the_box_is_that_of_each_image() -> None:
    x, weight = numbers(2, 3, 4, 4), numbers(5, 3, 2, 2, seed=1)
    _, sent, arrived = relevance(ZBox(), "embedding", F.conv2d, x, weight, None, stride=2)
    for row in range(2):
        low, upper = x[row].min().item(), x[row].max().item()
        for down in range(2):
            for column in range(2):
                at = (slice(None), slice(2 * down, 2 * down + 2), slice(2 * column, 2 * column + 2))
                patch, expected = x[row][at].detach(), torch.zeros(3, 2, 2, dtype=torch.float64)
                for j in range(5):
                    part = patch * weight[j] - low * weight[j].clamp(min=0) - upper * weight[j].clamp(max=0)
                    expected += part / (part.sum() + 1e-9) * sent[row, j, down, column]
                torch.testing.assert_close(arrived[row][at], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["epsilon", "alphabeta1", "alphabeta2", "gamma0.25", "zbox", "flat", "wsquare"])
def test_layers_without_a_bias_conserve(name: str) -> None:
    x, weight = numbers(3, 40), numbers(4, 40, seed=1)
    _, sent, arrived = relevance(LAYERS[name], "linear", F.linear, x, weight)
    torch.testing.assert_close(arrived.sum(dim=1), sent.sum(dim=1), rtol=1e-5, atol=1e-5)


def test_the_original_layers_hand_out_more_than_they_get() -> None:
    x, weight = numbers(1, 40), numbers(4, 40, seed=1)
    _, sent, arrived = relevance(SignSplit(apart=True), "linear", F.linear, x, weight)
    torch.testing.assert_close(arrived.sum(), 2 * sent.sum())


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_norms() -> None:
    x, weight, bias = numbers(3, 8), 1 + 0.1 * numbers(8, seed=1), numbers(8, seed=2)
    for rule in (Identity(), StreamNorm()):
        _, sent, arrived = relevance(rule, "norm", F.layer_norm, x, (8,), weight, bias, 1e-6)
        torch.testing.assert_close(arrived, sent, rtol=1e-6, atol=1e-6)
    out, sent, arrived = relevance(NormShare(), "norm", F.layer_norm, x, (8,), weight, bias, 1e-6)
    deviation = (x.var(dim=1, unbiased=False, keepdim=True) + 1e-6).sqrt().detach()
    for row in range(3):
        jacobian = (torch.eye(8, dtype=torch.float64) - 1 / 8) * weight[:, None] / deviation[row]  # d y_j / d x_i
        quotient = torch.stack([s / signed(y, 1e-6) for s, y in zip(sent[row], out[row], strict=True)])
        torch.testing.assert_close(arrived[row], x[row].detach() * (jacobian.T @ quotient))


def test_the_length_of_a_vector_is_a_constant() -> None:
    x = numbers(3, 8).requires_grad_()
    for rule in (Identity(), NormShare(), StreamNorm()):
        assert not rule(Call("norm", Tensor.norm, (x, 2, -1, True))).requires_grad
    assert not Identity()(Call("activation", torch.sigmoid, (x,))).requires_grad


def test_sums() -> None:
    one, other = numbers(2, 3, 4), numbers(2, 3, 4, seed=1)
    _, sent, a, b = relevance(SumShare(), "add", torch.add, one, other)
    torch.testing.assert_close(a + b, sent, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(a * other.detach(), b * one.detach())
    _, sent, a, b = relevance(SumShare(uniform=True), "add", torch.add, one, other)
    assert torch.equal(a, sent / 2)
    assert torch.equal(b, sent / 2)
    _, sent, a = relevance(SumShare(), "add", torch.add, one, torch.ones(4, dtype=torch.float64))
    expected = one.detach() / (one.detach() + 1)
    torch.testing.assert_close(a, expected * sent, rtol=1e-3, atol=1e-3)  # a constant keeps its own share
    with pytest.raises(TracingError, match="alpha"):
        relevance(SumShare(), "add", torch.add, one, other, alpha=2)


def test_sums_that_are_broadcast() -> None:
    _, sent, a, b = relevance(SumShare(uniform=True), "add", torch.add, numbers(2, 3, 4), numbers(1, 4, seed=1))
    assert a.shape == (2, 3, 4)
    torch.testing.assert_close(b, sent.sum(dim=(0, 1), keepdim=True)[0] / 2)


@pytest.mark.parametrize("rescaled", [True, False])
def test_sums_of_the_release(rescaled: bool) -> None:
    """Image by image; the release sums over the batch, and takes one image at a time."""
    one, other = numbers(2, 3, 4), numbers(2, 3, 4, seed=1)
    _, sent, a, b = relevance(Add(rescaled), "add", torch.add, one, other)
    for image in range(2):
        parts = [entry[image].detach() for entry in (one, other)]
        shares = [part * safe(sent[image], parts[0] + parts[1]) for part in parts]
        if rescaled:
            totals = [share.sum() for share in shares]
            size = abs(totals[0]) + abs(totals[1])
            shares = [share * (abs(t) / size * sent[image].sum() / t) for share, t in zip(shares, totals, strict=True)]
        torch.testing.assert_close(a[image], shares[0], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(b[image], shares[1], rtol=1e-6, atol=1e-9)
    if rescaled:
        torch.testing.assert_close((a + b).sum(dim=(1, 2)), sent.sum(dim=(1, 2)), rtol=1e-6, atol=1e-6)


def test_products() -> None:
    one, other = numbers(2, 3), numbers(2, 3, seed=1)
    _, sent, a = relevance(Factors(), "product", torch.mul, one, 0.3)
    assert torch.equal(a, sent)
    _, sent, a, b = relevance(Factors(), "product", torch.mul, one, other)
    assert torch.equal(a, sent / 2)
    assert torch.equal(b, sent / 2)
    with pytest.raises(TracingError, match="division"):
        relevance(Factors(), "product", torch.div, one, other)


def test_means() -> None:
    x = numbers(2, 5, 3)
    out, sent, arrived = relevance(MeanShare(), "mean", torch.mean, x, dim=1)
    expected = x.detach() / 5 * (sent / (out + 1e-6 * torch.sign(out))).unsqueeze(1)
    torch.testing.assert_close(arrived, expected)
    torch.testing.assert_close(arrived.sum(dim=1), sent, rtol=1e-3, atol=1e-3)


def slow_product(left: Tensor, right: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.zeros_like(left), torch.zeros_like(right)
    for i in range(left.shape[0]):
        for j in range(right.shape[1]):
            z = (left[i] * right[:, j]).sum()
            a[i] += left[i] * right[:, j] * sent[i, j] / signed(z, 1e-6) / 2
            b[:, j] += left[i] * right[:, j] * sent[i, j] / signed(z, 1e-6) / 2
    return a, b


def test_matrix_products() -> None:
    left, right = numbers(1, 4, 3), numbers(1, 3, 5, seed=1)
    _, sent, a, b = relevance(Halves(), "matmul", torch.matmul, left, right)
    expected = slow_product(left[0].detach(), right[0].detach(), sent[0])
    torch.testing.assert_close((a[0], b[0]), expected)
    constant = right[0].detach()
    out = Halves()(Call("matmul", torch.matmul, (left, constant)))
    (whole_share,) = torch.autograd.grad(out, left, sent)
    torch.testing.assert_close(whole_share[0], 2 * expected[0])  # a constant factor makes it a linear layer


def test_attention() -> None:
    q, k, v, sent = (numbers(1, 1, 4, 3, seed=seed) for seed in range(4))
    attention = (q @ k.transpose(-2, -1)).softmax(dim=-1)
    actual: Flows = UniformAttention().backward(attention, q, k, v, 1.0, sent)
    weights, values = slow_product(attention[0, 0], v[0, 0], sent[0, 0])
    torch.testing.assert_close((actual.attention[0, 0], actual.v[0, 0]), (weights, values))  # type: ignore[index]
    queries, keys = slow_product(q[0, 0], k[0, 0].T, weights)
    torch.testing.assert_close((actual.q[0, 0], actual.k[0, 0]), (queries, keys.T))  # type: ignore[index]
    held = ValueAttention().backward(attention, q, k, v, 1.0, sent)
    assert held.q is None
    assert held.k is None
    torch.testing.assert_close(held.v[0, 0], 2 * values)


# -- whole models ------------------------------------------------------------------------------------------------------


def without_biases(model: Any) -> Any:
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or name.endswith(("pos_embed", "cls_token")):
            torch.nn.init.zeros_(parameter)
    return model


@pytest.mark.parametrize(
    "text",
    ["", "linear=gamma:0.25", "linear=zplus, residual=uniform", "linear=alphabeta:2", "attention=uniform, linear=flat"],
)
def test_what_is_sent_arrives_where_biases_are_zero(text: str) -> None:
    """The logit; every token of every block's input together. Half of what uniform attention sends may reach keys."""
    model = without_biases(FAMILIES["gap"]().double())
    vision_model = vt.wrap(model)
    keep = Record("resid_pre", activation_grad, (0, 1, 2))
    x = images(vision_model, 2)
    live = Context(vision_model, x, Target.of(vision_model, 2, 1))
    for arrived in live.run_pass(Pass((keep,), composed(text)))[keep]:
        torch.testing.assert_close(arrived.sum(dim=(1, 2)), vision_model.logits(x)[:, 1], rtol=2e-2, atol=0)


@pytest.mark.parametrize("family", ["vit", "clip", "swiglu", "siglip", "eva02", "swin", "hf_vit_eager", "tv_vit"])
def test_walks_are_in_float64_and_answers_the_models_own(family: str) -> None:
    """A float32 model gives the relevance of its float64 self; its logits are those of a plain pass."""
    model = EVERY[family]()
    vision_model = vt.wrap(model)
    keep = Record("resid_pre", activation_grad, (0,))
    x = images(vision_model, 2)
    for table in (OURS, ORIGINAL, composed("")):
        model.float()
        single = Context(vision_model, x, Target.of(vision_model, 2, 1)).run_pass(Pass((keep,), table))
        assert single[keep][0].dtype == torch.float64
        torch.testing.assert_close(single.logits, vision_model.logits(x), rtol=1e-4, atol=1e-5)
        model.double()
        double = Context(vision_model, x.double(), Target.of(vision_model, 2, 1)).run_pass(Pass((keep,), table))
        assert torch.equal(single[keep][0], double[keep][0])


def test_every_word_of_the_vocabulary_makes_a_table() -> None:
    for place, words in VOCABULARY.items():
        tables = {word: composed(f"{place}={word}") for word in words}
        assert len(set(tables.values())) == len(words)
        assert composed("") == composed(f"{place}={DEFAULTS[place]}")
        assert all(isinstance(table, Composite) and table.propagates == "relevance" for table in tables.values())
    assert composed("linear=gamma:0.1,patch=flat") == composed(" patch = flat , linear = gamma:0.1")
    assert composed("linear=epsilon:0.1") != composed("linear=epsilon:0.2")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("linaer=gamma", "linaer=gamma"),
        ("linear", "'linear'"),
        ("norm=gamma", "norm=gamma is not one of identity, epsilon"),
        ("linear=gamma:much", "'much' is not a number"),
        ("linear=gamma:-1", "at least 0"),
        ("linear=alphabeta:0.5", "at least 1"),
        ("linear=flat:2", "flat has no size"),
        ("linear=gamma:nan", "at least 0"),
        ("attention=identity", "is not one of epsilon, uniform"),
    ],
)
def test_words_that_mean_no_rule(text: str, reported: str) -> None:
    with pytest.raises(SpecError, match=reported):
        vt.get_method(f'lrp(rules="{text}")')
