"""FullGrad and FullGrad+ against gradients at the outputs of all modules that have a bias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, golden, images, verified
from vitreous.methods.decomposition import bias_shares
from vitreous.methods.ops import dot
from vitreous.tracing import Context, Pass, Record, Target
from vitreous.tracing.rules import LINEARIZED
from zoo import EVERY


def terms(model: Any, x: Tensor, absolute: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Input terms ``[B, N]`` of all blocks; bias terms of all blocks and of the last norm, from hooks and autograd."""
    inputs: list[Tensor] = []
    outputs: list[tuple[int, Tensor, Tensor]] = []

    def watch(layer: int, module: nn.Module, options: Any, output: Tensor) -> None:
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            bias = module.bias
            if output.ndim == 4:  # heads of queries and keys
                bias = bias.expand(output.shape[1], -1).unsqueeze(1)
            outputs.append((layer, output, bias))

    handles = []
    for layer, block in enumerate(model.blocks):
        handles.append(block.register_forward_pre_hook(lambda module, options: inputs.append(options[0])))
        for module in block.modules():
            handles.append(
                module.register_forward_hook(lambda m, options, output, layer=layer: watch(layer, m, options, output))
            )
    last = len(model.blocks)
    handles.append(model.norm.register_forward_hook(lambda m, options, output: watch(last, m, options, output)))
    score = model(x)[:, 2].sum()
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(score, [*inputs, *(output for _, output, _ in outputs)])

    def reduce(product: Tensor) -> Tensor:
        product = product.abs() if absolute else product
        return product.sum(dim=(1, 3)) if product.ndim == 4 else product.sum(dim=-1)

    result = [reduce(value * gradient).detach() for value, gradient in zip(inputs, gradients, strict=False)]
    sums = [torch.zeros_like(result[0]) for _ in range(last + 1)]
    for (layer, _, bias), gradient in zip(outputs, gradients[len(inputs) :], strict=True):
        sums[layer] += reduce(bias * gradient).detach()
    return result, sums


# in a pooling by attention the biases behind the last norm reach patches too; it has a test of its own below
TOKENS = [family for family in FAMILIES if family != "siglip"]


@pytest.mark.parametrize("family", TOKENS)
@pytest.mark.parametrize("absolute", [False, True])
def test_every_bias_once(family: str, absolute: bool) -> None:
    model: Any = FAMILIES[family]().double()
    x = images(model, 2)
    inputs, biases = terms(model, x, absolute)
    prefix, more = model.num_prefix_tokens, f"absolute={str(absolute).lower()}"
    for start in range(3):
        actual = vt.get_method(f"fullgrad(layer={start}, {more})").attribute(model, x, target=2).flatten(1)
        expected = (inputs[start] + sum(biases[start:]))[:, prefix:]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
        actual = vt.get_method(f"fullgrad_plus(start={start}, {more})").attribute(model, x, target=2).flatten(1)
        expected = (sum(inputs[start:]) + sum(biases[start:]))[:, prefix:]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_compositions() -> None:
    """PLUS of FullGrad+ counts each bias once, PLUS of FullGrad once for every start; both are one pass."""
    model: Any = FAMILIES["vit"]().double()
    x = images(model, 2)
    inputs, biases = terms(model, x)
    runs: list[int] = []
    model.patch_embed.register_forward_hook(lambda *_: runs.append(1))
    verified(model)
    expected = {
        "plus(fullgrad_plus)": sum(inputs) + sum(biases),
        "skipplus(fullgrad_plus)": inputs[2] + biases[2] + biases[3],
        "plus(fullgrad_plus, start=1)": inputs[1] + inputs[2] + sum(biases[1:]),
        "plus(fullgrad)": sum(inputs) + biases[0] + 2 * biases[1] + 3 * (biases[2] + biases[3]),
    }
    for spec, summed in expected.items():
        runs.clear()
        actual = vt.get_method(spec).attribute(model, x, target=2).flatten(1)
        torch.testing.assert_close(actual, summed[:, 1:], rtol=0, atol=1e-10)
        assert len(runs) == 1


@pytest.mark.parametrize("family", EVERY)
def test_in_the_frozen_network_tokens_and_biases_are_the_logit(family: str) -> None:
    """There every part is affine: what is missing from the sum would be a bias that nobody saw."""
    model = vt.wrap(EVERY[family]())
    if model.attention == "windowed":
        pytest.skip("attends inside windows")
    model.module.double()
    x = images(model, 2)
    keeps = (
        Record("resid_pre", dot, tuple(range(model.depth))),
        Record("biases", bias_shares, tuple(range(model.depth + 1))),
    )
    cache = Context(model, x, Target.of(model, 2, 2)).run_pass(Pass(keeps, LINEARIZED))
    logit = cache.logits[:, 2]
    if family == "hf_siglip":
        logit = logit - model.module.logit_bias.detach()  # added to a cosine, not in a layer
    biases = [item.sum(dim=1) for item in cache[keeps[1]]]
    for layer, tokens in enumerate(cache[keeps[0]]):
        torch.testing.assert_close(tokens.sum(dim=1) + sum(biases[layer:]), logit, rtol=1e-9, atol=1e-9)


def test_golden_model() -> None:
    model, x = golden()
    inputs, biases = terms(model, x)
    actual = vt.get_method("fullgrad").attribute(model, x, target=2).flatten()
    torch.testing.assert_close(actual, (inputs[0] + sum(biases))[0, 1:], rtol=0, atol=1e-12)
    actual = vt.get_method("fullgrad_plus").attribute(model, x, target=2).flatten()
    assert sum(inputs)[0, 1:].sum().item() == pytest.approx(-0.167669631, rel=1e-8)  # the sheet's CAT
    torch.testing.assert_close(actual, (sum(inputs) + sum(biases))[0, 1:], rtol=0, atol=1e-12)


def test_a_model_without_biases_is_input_times_gradient() -> None:
    model: Any = FAMILIES["vit"]().double()
    x = images(model, 2)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.bias = None
    actual = vt.get_method("fullgrad").attribute(model, x, target=2)
    assert torch.equal(actual, vt.get_method("ixg").attribute(model, x, target=2))
