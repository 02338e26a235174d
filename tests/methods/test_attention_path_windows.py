"""Methods along a path where attention stays inside windows, against whole matrices and loops over the path."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import images
from reference_windows import ODD, SWINS, Slow, hf, slow_of, timm
from vitreous.errors import ModelError
from vitreous.methods.base import compute_attributions
from vitreous.tracing import Context, Pass, Record, Target, activation_grad, activation_value


@pytest.fixture(params=SWINS)
def slow(request: pytest.FixtureRequest) -> Slow:
    return slow_of(str(request.param))


def close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    assert expected.abs().max() > 0
    assert (actual - expected).abs().max() <= 1e-9 * expected.abs().max()


# -- slowly, between all patches -------------------------------------------------------------------


@cache
def asked(slow: Slow, steps: int) -> Tensor:
    """``W``: the gradient of the last attention at each point, its mean, what is positive, the mean over heads."""
    total: Any = 0
    for step in range(steps):
        x = slow.x * (step / (steps - 1) if steps > 1 else 1)
        total = total + slow.pairs(lambda x=x: slow.view.reference_forward(x)[:, slow.target].sum(), [0, 1, 2, 3])[3][1]
    return (total / steps).clamp(min=0).mean(dim=1)


def climbed(slow: Slow, matrices: list[Tensor], start: int) -> Tensor:
    """The product of these matrices of the blocks from ``start`` on, from the first up: ``[B, N last, N start]``."""
    total = torch.eye(math.prod(slow.grids[start]), dtype=torch.float64).repeat(len(slow.x), 1, 1)
    for layer, matrix in enumerate(matrices, start):
        if layer == 2 and start < 2:
            total = slow.merging() @ total
        total = matrix @ total
    return total


def weighed(slow: Slow, reached: Tensor, steps: int, start: int) -> Tensor:
    weights = asked(slow, steps)
    if start < 2:
        weights = weights @ slow.merging()
    return (weights * reached).mean(dim=1).reshape(-1, *slow.grids[start])


def by_heads(attention: Tensor, gradient: Tensor) -> Tensor:
    size = (attention.transpose(2, 3) @ gradient).abs().mean(dim=(2, 3))
    return torch.einsum("bh,bhij->bij", size / size.sum(dim=1, keepdim=True), attention)


def one(matrix: Tensor) -> Tensor:
    return torch.eye(matrix.shape[-1], dtype=torch.float64)


def check_bt_h(slow: Slow, start: int, steps: int) -> None:
    matrices = [by_heads(*pair) for pair in slow.full_matrices]
    reached = climbed(slow, [matrix + one(matrix) for matrix in matrices[start:]], start)
    close(slow.maps(f"bt_h(start={start}, steps={steps})"), weighed(slow, reached, steps, start))


def check_tam(slow: Slow, start: int, steps: int) -> None:
    *matrices, last = [attention.mean(dim=1) for attention, _ in slow.full_matrices]
    below = [matrix + one(matrix) for matrix in matrices[start:]]
    reached = climbed(slow, [*below, last], start)
    close(slow.maps(f"tam(start={start}, steps={steps})"), weighed(slow, reached, steps, start))
    twice = climbed(slow, [*below, last @ (last + one(last))], start)
    close(slow.maps(f"tam(start={start}, steps={steps}, twice=true)"), weighed(slow, twice, steps, start))


@pytest.mark.parametrize("check", [check_bt_h, check_tam])
def test_whatever_reaches_the_last_grid_weighed_by_what_is_asked_of_it(check: Any, slow: Slow) -> None:
    check(slow, start=0, steps=2)


@pytest.mark.parametrize("check", [check_bt_h, check_tam])
@pytest.mark.parametrize(("start", "steps"), [(0, 4), (1, 1), (2, 4), (3, 1)])
@pytest.mark.parametrize("kind", ["timm_odd", "tv"])
def test_other_beginnings_and_paths(check: Any, start: int, steps: int, kind: str) -> None:
    check(slow_of(kind), start, steps)


def test_iia_on_its_corners(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    check_iia(slow, 1, monkeypatch)


@pytest.mark.parametrize("kind", ["timm", "tv_wide"])
def test_iia_in_between(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_iia(slow_of(kind), 4, monkeypatch)


def check_iia(slow: Slow, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth softmax is the last block's: it is scaled there, and has no way back to its scores."""
    unchanged, calls, scale = F.softmax, [0], [1.0]

    def softmax(*args: Any, **options: Any) -> Tensor:
        out = unchanged(*args, **options)
        calls[0] += 1
        return out if calls[0] % 4 else (scale[0] * out.detach()).requires_grad_()

    way = [step / steps for step in range(steps + 1)]
    sums = [torch.zeros_like(attention[:, 0]) for attention, _ in slow.full_matrices]
    with monkeypatch.context() as patch:
        patch.setattr(F, "softmax", softmax)
        for t in way:
            for scale[0] in way:

                def run(t: float = t) -> Tensor:
                    return slow.view.reference_forward(t * slow.x)[:, slow.target].sum()

                for total, (a, g) in zip(sums, slow.pairs(run, [0, 1, 2, 3]), strict=True):
                    total += (a * g).clamp(min=0).mean(dim=1)
    mixed = [total / len(way) ** 2 + one(total) for total in sums]
    close(slow.maps(f"iia(steps={steps})"), slow.rolled([item / item.sum(dim=2, keepdim=True) for item in mixed]))


# -- ways to compute, and models around it ---------------------------------------------------------

METHODS = ["bt_h(steps=3)", "tam(steps=3)", "iia(steps=1)"]


@pytest.mark.parametrize("library", ["timm", "hf"])
def test_fused_attention_gives_the_same(library: str) -> None:
    if library == "hf":
        pytest.importorskip("transformers")
        models = hf(), hf(attention="sdpa")
    else:
        models = timm(size=ODD), timm(size=ODD)
        for model, fused in zip(models, (True, False), strict=True):
            for block in (block for stage in model.layers for block in stage.blocks):
                block.attn.fused_attn = fused
    x = images(models[0], 2)
    for spec in METHODS:
        actual, expected = (vt.get_method(spec).attribute(model, x, target=2) for model in models)
        within = 1e-4 if library == "hf" else 1e-9  # whose written-out softmax is a float32 whatever the model is
        assert (actual - expected).abs().max() <= within * expected.abs().max()


@pytest.mark.parametrize("spec", METHODS)
def test_inner_batches_and_neighbours_change_nothing(spec: str) -> None:
    model, method = timm(size=ODD), vt.get_method(spec)
    x = images(model, 3)
    actual = method.attribute(model, x, target=2)
    for size in (1, 2, 7):
        close(method.attribute(model, x, target=2, batch_size=size), actual)
    for image, item in zip(x, actual, strict=True):
        close(method.attribute(model, image[None], target=2)[0], item)


def test_one_path_serves_both() -> None:
    model = vt.wrap(timm())
    x = images(model, 2)
    model.verify(x)
    runs: list[int] = []
    context = Context(model, x, Target.of(model, 2, 1), on_progress=runs.append)
    compute_attributions(context, [vt.get_method("bt_h(steps=4)"), vt.get_method("tam(steps=4)")])
    assert sum(runs) == 2 * 4


@pytest.mark.parametrize("name", ["bt_h", "tam"])
def test_sub_networks_have_the_windows_of_their_blocks(name: str) -> None:
    slow = slow_of("timm_odd")
    tokens = slow.view.forward_blocks(slow.view.embed(slow.x), 0, 1).detach()
    actual = vt.get_method(f"{name}(start=0, steps=1)").attribute(slow.view.suffix(1, slow.x), tokens, target=1)
    close(actual, slow.maps(f"{name}(start=1, steps=1)"))


@pytest.mark.parametrize("spec", METHODS)
def test_half_precision_keeps_small_numbers(spec: str) -> None:
    model = timm()
    x = images(model, 1)
    full = vt.get_method(spec).attribute(model, x, target=1)
    half = vt.get_method(spec).attribute(model.half(), x.half(), target=1)
    assert half.dtype == torch.float32
    assert F.cosine_similarity(full.flatten(), half.double().flatten(), dim=0) > 0.999


@pytest.mark.filterwarnings("ignore::vitreous.errors.VitreousWarning")
@pytest.mark.parametrize("spec", METHODS)
def test_no_gradient_is_no_error(spec: str) -> None:
    model = timm(size=64)
    actual = vt.get_method(spec).attribute(model, images(model, 1), target=lambda logits: 0 * logits[:, 0])
    assert actual.amax() - actual.amin() <= 1e-12


def doubled(attention: Tensor) -> Tensor:
    return 2 * attention


def test_what_is_kept_of_changed_attention_is_that_of_the_new_weights(slow: Slow) -> None:
    keeps = tuple(
        Record("window_weights", activation_grad if grad else activation_value, (2, 3), grad) for grad in (False, True)
    )
    context = Context(slow.view, slow.x, Target.of(slow.view, 2, slow.target))
    own, changed = context.run_pass(Pass(keeps)), context.run_pass(Pass(keeps, patches=((3, doubled),)))
    assert torch.equal(changed[keeps[0]][0], own[keeps[0]][0])
    assert torch.equal(changed[keeps[0]][1], 2 * own[keeps[0]][1])
    for layer, gradient in zip((2, 3), changed[keeps[1]], strict=True):
        hidden = ~slow.view.windows(layer).sees.unsqueeze(1).expand_as(gradient)
        assert gradient.abs().max() > 0
        assert not gradient[hidden].any()
    assert not torch.allclose(changed[keeps[1]][0], own[keeps[1]][0])
    assert (changed.logits - own.logits).abs().max() > 1e-6


@pytest.mark.parametrize("spec", ["bt_t(steps=2)", "inflow"])
def test_what_needs_values_of_all_tokens_is_refused(spec: str) -> None:
    model = timm()
    with pytest.raises(ModelError, match="inside windows"):
        vt.get_method(spec).attribute(model, images(model, 1))
