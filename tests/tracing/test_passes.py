"""What a pass sees, what it runs, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import reference_vit
import vitreous as vt
from families import FAMILIES, images, verified
from vitreous.errors import TracingError
from vitreous.methods import compute_attributions
from vitreous.methods.ops import dot, head_mean, positive
from vitreous.tracing import Context, Pass, Record, Target, activation_grad, activation_value
from vitreous.tracing.memory import in_parts, inner_batch
from vitreous.tracing.rules import GRADIENT, LINEARIZED, Composite
from vitreous.tracing.runner import merge, run_for_targets


def session(model: nn.Module) -> Context:
    vision_model = vt.wrap(model)
    return Context(vision_model, images(model, 2), Target.of(vision_model, 2, 1))


class Count:
    """Counts forwards of the patch embedding and of each block, and images in them."""

    def __init__(self, model: nn.Module) -> None:
        self.embeds = self.blocks = self.images = 0
        self.handles = [model.patch_embed.register_forward_pre_hook(self._embed)]
        self.handles += [block.register_forward_pre_hook(self._block) for block in model.blocks]
        verified(model)
        self.embeds = self.blocks = self.images = 0

    def _embed(self, module: nn.Module, args: tuple[Tensor]) -> None:
        self.embeds += 1
        self.images += len(args[0])

    def _block(self, module: nn.Module, args: tuple[Tensor]) -> None:
        self.blocks += 1


POINTS = {"resid_pre": "inputs", "attn_weights": "attention", "attn_values": "values", "norm1": "norm1"}


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_of_every_site(family, fused):
    """Attention, values, block inputs, norm outputs: as in the forward written by hand, whichever way timm attends."""
    model = FAMILIES[family]().double()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    layers = tuple(range(len(model.blocks)))
    keeps = {
        (point, grad): Record(point, activation_grad if grad else activation_value, layers, grad)
        for point in POINTS
        for grad in (False, True)
    }
    cache = session(model).run_pass(Pass(tuple(keeps.values())))
    run = reference_vit.forward(model, images(model, 2))
    for (point, grad), keep in keeps.items():
        expected = getattr(run, POINTS[point])
        if grad:
            expected = torch.autograd.grad(run.logits[:, 1].sum(), expected, retain_graph=True)
        for actual, wanted in zip(cache[keep], expected, strict=True):
            assert torch.allclose(actual, wanted, atol=1e-10), (point, grad)


@pytest.mark.parametrize("family", ["vit", "deit3"])
def test_branch_outputs_add_up_to_the_residual_stream(family):
    """input + attn + mlp = output, LayerScale included; and mlp is the branch of norm2."""
    model = FAMILIES[family]().double()
    layers = tuple(range(len(model.blocks)))
    keeps = {
        point: Record(point, activation_value, layers, grad=False)
        for point in ("resid_pre", "attn", "norm2", "mlp", "resid_post")
    }
    cache = session(model).run_pass(Pass(tuple(keeps.values())))
    actual = {point: cache[keep] for point, keep in keeps.items()}
    for layer, block in enumerate(model.blocks):
        middle = actual["resid_pre"][layer] + actual["attn"][layer]
        assert torch.allclose(middle + actual["mlp"][layer], actual["resid_post"][layer])
        assert torch.allclose(reference_vit.norm(block.norm2, middle), actual["norm2"][layer])


def test_gradients_of_branches_are_those_of_the_block_output():
    model = FAMILIES["vit"]().double()
    keeps = [Record(point, activation_grad, (0, 1)) for point in ("mlp", "resid_post")]
    cache = session(model).run_pass(Pass(tuple(keeps)))
    for branch, output in zip(*(cache[keep] for keep in keeps), strict=True):
        assert torch.equal(branch, output)


def test_ten_methods_cost_one_forward_and_one_backward():
    model = FAMILIES["vit"]()
    asked = ["raw_attention", "rollout", "generic", "attcam", "gradient", "ixg", "gradcam", "hirescam"]
    asked += ["plus(ixg)", "skipplus(ixg)"]
    count, live = Count(model), session(model)
    together = compute_attributions(live, [vt.get_method(item) for item in asked])
    assert (count.embeds, count.blocks) == (1, len(model.blocks))
    for spec, actual in zip(asked, together, strict=True):
        alone = vt.get_method(spec).attribute(model, images(model, 2), target=1)
        assert torch.allclose(actual.map, alone, atol=1e-6)


def test_the_frozen_network_is_a_second_pass_and_only_one():
    model = FAMILIES["vit"]()
    count = Count(model)
    compute_attributions(
        session(model), [vt.get_method(name) for name in ("decompx", "skipplus(decompx)", "rollout", "ixg", "generic")]
    )
    assert count.embeds == 2


def test_what_needs_no_gradient_rides_along():
    forward_only = Pass((Record("attn_weights", head_mean, (0, 1), grad=False),))
    frozen = Pass((Record("resid_pre", dot, (0,)),), LINEARIZED)
    (merged,) = merge([forward_only, frozen, forward_only])
    assert merged.composite == LINEARIZED
    assert set(merged.records) == {*forward_only.records, *frozen.records}
    reference, other = merge([Pass((Record("resid_pre", dot, (1,)),)), frozen])
    assert (reference.composite, other.composite) == (GRADIENT, LINEARIZED)


def test_equal_wishes_are_united_over_layers():
    (merged,) = merge([Pass((Record("resid_pre", dot, (2,)),)), Pass((Record("resid_pre", dot, (0, 2)),))])
    assert merged.records == (Record("resid_pre", dot, (0, 2)),)


def test_a_trace_is_reused_and_a_wider_wish_is_not_missed():
    model = FAMILIES["vit"]()
    count, live = Count(model), session(model)
    larger = Pass((Record("resid_pre", dot, (0, 1, 2)),))
    first = live.run_pass(larger)
    assert live.run_pass(Pass((Record("resid_pre", dot, (1,)),))) is first
    assert live.logits is first.logits
    assert count.embeds == 1
    live.run_pass(Pass((Record("resid_pre", activation_value, (1,), grad=False),)))
    assert count.embeds == 2


def test_several_targets_share_one_forward():
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    keep = Record("attn_weights", positive, (0, 1, 2))
    weights = Record("attn_weights", head_mean, (1,), grad=False)
    count = Count(model)
    caches = run_for_targets(vision_model, x, Pass((keep, weights)), [Target.of(vision_model, 2, c) for c in range(5)])
    assert count.embeds == 1
    for target, cache in enumerate(caches):
        alone = Context(vision_model, x, Target.of(vision_model, 2, target)).run_pass(Pass((keep, weights)))
        assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(cache[keep], alone[keep], strict=True))
        assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(cache[weights], alone[weights], strict=True))


def test_the_backward_ends_at_the_lowest_layer_asked_for():
    """Blocks below it run without a graph: their inputs have no gradient to give."""
    model = FAMILIES["vit"]()
    grad_enabled = []
    handles = [b.register_forward_pre_hook(lambda m, a: grad_enabled.append(a[0].requires_grad)) for b in model.blocks]
    verified(model)
    grad_enabled.clear()
    session(model).run_pass(Pass((Record("norm1", dot, (2,)),)))
    session(model).run_pass(Pass((Record("attn_weights", head_mean, (0, 1), grad=False),)))
    for handle in handles:
        handle.remove()
    assert grad_enabled == [False, False, True, False, False, False]


def test_weights_get_no_gradient_and_need_none():
    model = FAMILIES["vit"]()
    session(model).run_pass(Pass((Record("resid_pre", dot, (0,)),)))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    frozen = FAMILIES["vit"]().requires_grad_(False)
    keep = Record("resid_pre", dot, (0,))
    expected = session(model).run_pass(Pass((keep,)))[keep][0]
    assert torch.equal(session(frozen).run_pass(Pass((keep,)))[keep][0], expected)


def test_fused_attention_is_left_alone_when_nobody_asks(monkeypatch):
    """Without a wish for attention the fused kernel runs with its own backward; with one, our backward runs."""
    from vitreous.tracing.attention import Attend

    ours = []
    monkeypatch.setattr(Attend, "apply", lambda *a: ours.append(1) or F.scaled_dot_product_attention(*a[:3]))
    model = FAMILIES["vit"]()
    session(model).run_pass(Pass((Record("resid_pre", dot, (0,)), Record("norm1", dot, (2,)))))
    assert ours == []
    with pytest.raises(TracingError, match="not recorded"):  # the stand-in shows nothing, and that is an error
        session(model).run_pass(Pass((Record("attn_weights", positive, (1,)),)))
    assert ours == [1]


def test_attention_rows_sum_to_one():
    for make in FAMILIES.values():
        model = make()
        keep = Record("attn_weights", activation_value, tuple(range(len(model.blocks))), grad=False)
        for attention in session(model).run_pass(Pass((keep,)))[keep]:
            assert torch.allclose(attention.sum(dim=-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("kind", ["bool", "float", "causal", "gqa"])
def test_attention_backward_with_masks_and_grouped_heads(kind):
    """Our hand-written backward against autograd through torch's own function."""
    from vitreous.tracing.attention import Attend, AttentionCall

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    allowed = torch.rand(6, 6, generator=generator) > 0.4
    allowed.fill_diagonal_(True)
    mask = {"bool": allowed, "float": torch.randn(6, 6, generator=generator).double()}.get(kind)
    causal, scale = kind == "causal", 0.3 if kind == "gqa" else None
    call = AttentionCall(mask, causal, scale)
    ones = [x.clone().requires_grad_() for x in (q, k, v)]
    twos = [x.clone().requires_grad_() for x in (q, k, v)]
    mine = Attend.apply(*ones, call)
    others_own = F.scaled_dot_product_attention(*twos, mask, 0.0, causal, scale=scale)
    assert torch.equal(mine, others_own)
    assert torch.allclose(call.weights(q, k) @ v, others_own)
    upstream = torch.randn(mine.shape, generator=generator, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad(mine, ones, upstream), torch.autograd.grad(others_own, twos, upstream), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-12)


# -- wrong is loud -------------------------------------------------------------------------------------------------


def test_an_activation_nobody_knows_is_an_error():
    model = FAMILIES["vit"]()
    model.blocks[1].mlp.act = nn.Mish()
    with pytest.raises(TracingError, match="saw 0 activation calls in block 1, expected 1"):
        vt.get_method("decompx").attribute(model, images(model, 1))
    assert vt.get_method("ixg").attribute(model, images(model, 1)).shape == (1, 4, 4)


def test_a_norm_nobody_knows_is_an_error():
    class MyNorm(nn.LayerNorm):
        def forward(self, x):
            return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + self.eps).sqrt()

    model = FAMILIES["vit"]()
    model.norm = MyNorm(24)
    with pytest.raises(TracingError, match="saw 0 norm calls in the head, expected 1"):
        vt.get_method("decompx").attribute(model, images(model, 1))


def test_attention_computed_in_an_unknown_way_is_an_error():
    class Sigmoid(nn.Module):
        def forward(self, x, attn_mask=None, is_causal=False):
            return torch.sigmoid(x @ x.transpose(1, 2)) @ x

    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 1)
    model.blocks[0].attn = Sigmoid()
    live = Context(vision_model, x, Target.of(vision_model, 1))
    with pytest.raises(TracingError, match="saw 0 attention calls in block 0, expected 1"):
        live.run_pass(Pass((Record("attn_weights", head_mean, (0,), grad=False),)))


def test_values_changed_in_place_are_an_error():
    model = FAMILIES["vit"]()
    keep = Record("norm1", activation_grad, (0,))
    model.blocks[0].attn.qkv.register_forward_pre_hook(lambda m, a: (a[0].mul_(1.0),))
    with pytest.raises(TracingError, match="changed in place"):
        session(model).run_pass(Pass((keep,)))


@pytest.mark.parametrize(
    "make", [lambda: Record("nowhere", activation_value, grad=False), lambda: Composite.of(propagates="odd")]
)
def test_unknown_words_are_refused(make):
    with pytest.raises(TracingError, match="unknown"):
        make()


# -- memory --------------------------------------------------------------------------------------------------------


def test_inner_batches_follow_the_budget():
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 1)
    sizes = [inner_batch(vision_model, x, budget) for budget in (0.001, 0.01, 0.1)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1
    count = Count(model)
    live = Context(vision_model, images(model, 5), Target.of(vision_model, 5), batch=2)
    keep = Record("resid_pre", dot, (0,))
    cache = live.run_pass(Pass((keep,)))
    assert (count.embeds, count.images) == (3, 5)
    assert len(cache[keep][0]) == len(cache.logits) == cache.batch == 5


def test_out_of_memory_halves_and_goes_on():
    tried = []

    def work(start: int, stop: int) -> list[int]:
        tried.append((start, stop))
        if stop - start > 2:
            raise torch.OutOfMemoryError("too much")
        return list(range(start, stop))

    assert [item for part in in_parts(work, 7, 7) for item in part] == list(range(7))
    assert tried == [(0, 7), (0, 3), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(lambda a, b: (_ for _ in ()).throw(torch.OutOfMemoryError("always")), 4, 4)
    with pytest.raises(RuntimeError, match="another reason"):
        in_parts(lambda a, b: (_ for _ in ()).throw(RuntimeError("another reason")), 4, 4)


def test_progress_counts_inputs():
    model = FAMILIES["vit"]()
    ticks = []
    vision_model = vt.wrap(model)
    live = Context(vision_model, images(model, 3), Target.of(vision_model, 3), batch=2, on_progress=ticks.append)
    compute_attributions(live, [vt.get_method("smooth(ixg, samples=4)")])
    assert sum(ticks) == 3 * 4 + 3  # the copies, and the three images themselves to know their class
