"""The LRP family: golden numbers, TransAtt written out with hooks on timm's modules, and what the variants change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, golden, images
from vitreous.methods import compute_attributions
from vitreous.tracing import Context, Target

MODEL, IMAGE = golden()


def attribute(spec: str) -> Tensor:
    return vt.get_method(spec).attribute(MODEL, IMAGE, target=2)[0]


# sum, max, arg max, entries 0, 50, 101, 195
TABLE = {
    "transatt": (0.00881646126, 0.000482687258, 162, 6.17146583e-05, 5.90836438e-05, 5.51240049e-05, 1.44192387e-05),
    "transatt@eval": (
        0.00365630517,
        9.60023605e-05,
        82,
        2.37470691e-05,
        4.02229879e-05,
        2.91151737e-05,
        1.43199506e-05,
    ),
    "partial_lrp": (0.0561354441, 0.00084514016, 149, 0.000536970244, 0.000739949219, 5.17529017e-06, 0.00014322757),
}


@pytest.mark.parametrize("spec", TABLE)
def test_golden_walks(spec: str) -> None:
    total, largest, place, *entries = TABLE[spec]
    actual = attribute(spec).flatten()
    assert actual.sum().item() == pytest.approx(total, rel=3e-9)
    assert actual.max().item() == pytest.approx(largest, rel=3e-9)
    assert actual.argmax().item() == place
    assert actual[[0, 50, 101, 195]].tolist() == pytest.approx(entries, rel=3e-9)


def test_golden_pixels() -> None:
    actual = attribute("full_lrp")
    assert actual.sum().item() == pytest.approx(399.724938, rel=3e-9)
    assert actual[0, 0].item() == pytest.approx(0.0698872132, rel=3e-9)
    assert actual[100, 37].item() == pytest.approx(0.0200142985, rel=3e-9)


# patches, entries 0, 50, 101, 195, pixel sum, pixel (100, 37)
GRADIENTS = {
    "attnlrp": (
        0.215035713,
        -0.0018232353,
        0.00256455482,
        0.00404114341,
        0.000551723518,
        0.0610224296,
        -0.000141833121,
    ),
    "cp_lrp@lxt": (
        0.248398797,
        -0.00531671933,
        -0.000255723353,
        0.00972335567,
        -0.000121434942,
        0.158629584,
        -0.000551431064,
    ),
    "cp_lrp": (0.231891431, -0.00603438101, -0.00176520235, 0.010213671, 0.00233915659, 0.0973648585, -0.000656195602),
    "cp_lrp@lnargs": (
        0.416230105,
        -0.0068549519,
        -0.004934807,
        0.0104677648,
        0.000913657887,
        0.16304473,
        -0.000901376585,
    ),
}


@pytest.mark.parametrize("spec", GRADIENTS)
def test_golden_gradients(spec: str) -> None:
    """The sheet's activation quotients have 1e-10 in their denominators; ours have none."""
    total, *entries, all_pixels, one_pixel = GRADIENTS[spec]
    method: Any = vt.get_method(spec)
    actual = method.attribute(MODEL, IMAGE, target=2)[0].flatten()
    assert actual.sum().item() == pytest.approx(total, rel=2e-9)
    assert actual[[0, 50, 101, 195]].tolist() == pytest.approx(entries, rel=1e-7)
    pixels = replace(method, at="pixels").attribute(MODEL, IMAGE, target=2)[0]
    assert pixels.sum().item() == pytest.approx(all_pixels, rel=1e-8)
    assert pixels[100, 37].item() == pytest.approx(one_pixel, rel=1e-8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("transatt", "transatt@eval"),
        ("transatt", "transatt(rules=original)"),
        ("partial_lrp", "partial_lrp@bt"),
        ("full_lrp", "full_lrp(rules=ours)"),
        ("lrp_rollout", "lrp_rollout(rules=original)"),
        ("cp_lrp", "cp_lrp@lxt"),
        ("cp_lrp", "cp_lrp@lnargs"),
        ("cp_lrp@lxt", "cp_lrp@lnargs"),
        ("lrp", 'lrp(rules="linear=zplus")'),
    ],
)
def test_presets_and_rules_differ(one: str, other: str) -> None:
    orders = [attribute(spec).flatten().argsort() for spec in (one, other)]
    assert (orders[0] != orders[1]).double().mean() > 0.5


def test_the_same_under_other_names() -> None:
    assert torch.equal(attribute("transatt@tis"), attribute("transatt"))
    torch.testing.assert_close(attribute("cp_lrp@lxt"), attribute("decompx"))
    assert vt.get_method("chefer1") == vt.get_method("t_lrp") == vt.get_method("transatt")
    assert vt.get_method("conservative_lrp") == vt.get_method("cp_lrp")


# -- TransAtt with hooks -----------------------------------------------------------------------------------------------


def safe(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0.0, a / (b + 1e-9))


def layer(module: Any, x: Tensor, sent: Tensor) -> Tensor:
    positive, negative = module.weight.clamp(min=0), module.weight.clamp(max=0)
    up, down = x.clamp(min=0), x.clamp(max=0)
    s = safe(sent, up @ positive.T + down @ negative.T)
    return up * (s @ positive) + down * (s @ negative)


def added(one: Tensor, other: Tensor, sent: Tensor) -> list[Tensor]:
    shares = [part * safe(sent, one + other) for part in (one, other)]
    sums = [share.sum() for share in shares]
    size = sums[0].abs() + sums[1].abs()
    return [
        share * safe(safe(total.abs(), size) * sent.sum(), total) for share, total in zip(shares, sums, strict=True)
    ]


def factors(left: Tensor, right: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
    s = safe(sent, left @ right)
    return left * (s @ right.transpose(-2, -1)) / 2, right * (left.transpose(-2, -1) @ s) / 2


def transatt(model: Any, image: Tensor, target: int, start: int) -> Tensor:
    """One image, module by module: the released walk with LayerScale taken as the identity."""
    seen: dict[Any, tuple[Tensor, Tensor]] = {}
    for block in model.blocks:
        block.attn.fused_attn = False
    handles = [m.register_forward_hook(lambda m, i, o: seen.update({m: (i[0].clone(), o)})) for m in model.modules()]
    logits = model(image)
    for handle in handles:
        handle.remove()
    attentions = [seen[block.attn.attn_drop][1] for block in model.blocks]
    gradients = torch.autograd.grad(logits[0, target], attentions)
    with torch.no_grad():
        head, _ = seen[model.head]
        sent = torch.zeros_like(logits)
        sent[0, target] = 1
        pooled = layer(model.head, head, sent)
        stream = torch.zeros_like(seen[model.norm][0])
        stream[:, 0] = head * safe(pooled, head)
        relevances: list[Tensor] = []
        for index in reversed(range(len(model.blocks))):
            block = model.blocks[index]
            if index + 1 < len(model.blocks):
                after = seen[model.blocks[index + 1]][0]
                stream = after * safe(stream, after)
            middle = seen[block.norm2][0]
            visible, branch = added(middle, seen[block.ls2][1], stream)
            branch = layer(block.mlp.fc2, seen[block.mlp.fc2][0], branch)
            branch = layer(block.mlp.fc1, seen[block.mlp.fc1][0], branch)
            stream = middle * (safe(visible, middle) + safe(branch, middle))
            before = seen[block][0]
            visible, branch = added(before, seen[block.ls1][1], stream)
            branch = layer(block.attn.proj, seen[block.attn.proj][0], branch)
            heads = block.attn.num_heads
            q, k, v = seen[block.attn.qkv][1].reshape(1, branch.shape[1], 3, heads, -1).permute(2, 0, 3, 1, 4)
            branch = branch.reshape(1, -1, heads, v.shape[-1]).transpose(1, 2)
            weights, values = factors(attentions[index], v, branch)
            relevances.insert(0, weights)
            queries, keys = factors(q, k.transpose(-2, -1), weights)
            parts = torch.stack([queries, keys.transpose(-2, -1), values]).permute(1, 3, 0, 2, 4)
            branch = layer(block.attn.qkv, seen[block.attn.qkv][0], parts.reshape(1, stream.shape[1], -1))
            stream = visible + branch
        joint = torch.eye(stream.shape[1], dtype=stream.dtype)
        for gradient, relevance in list(zip(gradients, relevances, strict=True))[start:]:
            joint = joint + (gradient * relevance).clamp(min=0).mean(dim=1)[0] @ joint
    return joint[0, model.num_prefix_tokens :]


@pytest.mark.parametrize("family", ["vit", "registers", "deit3", "nonsquare"])
@pytest.mark.parametrize("start", [0, 1])
def test_transatt_module_by_module(family: str, start: int) -> None:
    """A batch of two, each image with a walk of its own."""
    model = FAMILIES[family]().double()
    x = images(model, 2)
    actual = vt.get_method(f"transatt(start={start})").attribute(model, x, target=1)
    for image in range(2):
        expected = transatt(FAMILIES[family]().double(), x[image : image + 1], 1, start)
        # near-zero denominators magnify even rounding of 1e-16
        torch.testing.assert_close(actual[image].flatten(), expected, rtol=1e-5, atol=1e-7 * expected.max().item())


def test_relevance_passes_do_not_mix_with_gradients() -> None:
    """All of the family beside gradient methods in one session, and each alone."""
    model = vt.wrap(FAMILIES["vit"]())
    x = images(model, 2)
    names = [
        "generic",
        "transatt",
        "partial_lrp",
        "lrp_rollout",
        "full_lrp",
        "lrp",
        "cp_lrp",
        "attnlrp",
        "decompx",
        "ixg",
    ]
    methods = [vt.get_method(name) for name in names]
    together = compute_attributions(Context(model, x, Target.of(model, 2, 1)), methods)
    for method, actual in zip(methods, together, strict=True):
        alone = method.attribute(model, x, target=1)
        torch.testing.assert_close(actual.map, alone, rtol=1e-5, atol=1e-6 * alone.abs().max().item())


def test_relevance_takes_more_memory_and_goes_in_smaller_parts() -> None:
    """Float64, and what rules divide by: a fifth as many images at once as for gradients."""
    model = vt.wrap(FAMILIES["vit"]())
    for name, batch_sizes in (("generic", [10]), ("lrp", [2] * 5), ("full_lrp", [2] * 5), ("transatt", [2] * 10)):
        ran: list[int] = []
        context = Context(model, images(model, 10), Target.of(model, 10, 1), batch=10, on_progress=ran.append)
        compute_attributions(context, [vt.get_method(name)])
        assert ran == batch_sizes, name


@pytest.mark.parametrize(
    "other", ["iba(samples=2, steps=2)", "coiba(samples=2, steps=2)", "eigencam", "rollout", "random"]
)
@pytest.mark.parametrize("first", [True, False])
def test_what_runs_in_double_precision_is_not_lent_to_others(other: str, first: bool) -> None:
    """A pass without a backward rides along with others, but not with a walk: its tokens are in float64."""
    model = vt.wrap(FAMILIES["vit"]())
    x = images(model, 2)
    names = ["lrp", other] if first else [other, "lrp"]
    together = compute_attributions(Context(model, x, Target.of(model, 2, 1)), [vt.get_method(name) for name in names])
    for name, actual in zip(names, together, strict=True):
        assert actual.map.dtype == torch.float32
        assert torch.equal(actual.map, vt.get_method(name).attribute(model, x, target=1))
