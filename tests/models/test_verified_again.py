"""A model that is changed is verified again, and what its own forward writes stays the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import VitreousError
from vitreous.models.description import deviations
from vitreous.models.shared_copy import _entries
from zoo import EVERY


class Averaging(VisionTransformer):
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(self.fc_norm(x[:, self.num_prefix_tokens :].mean(dim=1)))


def model() -> Any:
    return FAMILIES["vit"]()


def pooled_by_average() -> nn.Module:
    reference = model()
    reference.global_pool = "avg"
    return reference


# -- when a model is verified again --------------------------------------------------------------------


def doubled(own: Callable[..., Any]) -> Callable[..., Any]:
    def patched(*args: Any, **kwargs: Any) -> Any:
        out = own(*args, **kwargs)
        return 2 * out

    return patched


@pytest.mark.parametrize("name", ["forward_features", "forward"])
@pytest.mark.parametrize("on", ["instance", "class"])
def test_a_method_patched_after_the_first_call(monkeypatch: pytest.MonkeyPatch, name: str, on: str) -> None:
    """Both run outside the parts that a view runs: the model says something else from now on."""
    odd = model()
    x = images(odd, 1)
    with torch.no_grad():
        odd.norm = nn.Identity()  # nothing that takes a factor back
    vt.get_method("ixg").attribute(odd, x, target=1)
    owner = odd if on == "instance" else VisionTransformer
    monkeypatch.setattr(owner, name, doubled(getattr(owner, name)))
    with pytest.raises(VitreousError, match="computes something else than its parts"):
        vt.get_method("ixg").attribute(odd, x, target=1)
    monkeypatch.undo()
    vt.get_method("ixg").attribute(odd, x, target=1)


@pytest.mark.parametrize("on", ["instance", "class"])
def test_a_pooling_patched_after_the_first_call(monkeypatch: pytest.MonkeyPatch, on: str) -> None:
    odd = model()
    x = images(odd, 1)
    first = vt.get_method("generic").attribute(odd, x, target=1)
    patched = Averaging.forward_head
    monkeypatch.setattr(
        odd if on == "instance" else VisionTransformer,
        "forward_head",
        patched.__get__(odd) if on == "instance" else patched,
    )
    result = vt.get_method("generic").attribute(odd, x, target=1)
    monkeypatch.undo()
    assert torch.equal(result, vt.get_method("generic").attribute(pooled_by_average(), x, target=1))
    assert torch.equal(vt.get_method("generic").attribute(odd, x, target=1), first)


def test_a_block_patched_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = model()
    x = images(odd, 1)
    first = vt.get_method("attin").attribute(odd, x, target=1)
    monkeypatch.setattr(Block, "forward", lambda self, x: 1.5 * x + self.attn(self.norm1(x)))
    with pytest.raises(VitreousError, match="block 2 never runs its second norm"):
        vt.get_method("attin").attribute(odd, x, target=1)
    monkeypatch.undo()
    assert torch.equal(vt.get_method("attin").attribute(odd, x, target=1), first)


def test_methods_that_a_forward_calls_are_part_of_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = model()
    x = images(odd, 1)
    vt.get_method("ixg").attribute(odd, x, target=1)
    before = vt.wrap(odd).logits(x)
    own = VisionTransformer._pos_embed
    monkeypatch.setattr(VisionTransformer, "_pos_embed", lambda self, x: 1.5 * own(self, x))
    seen = []
    monkeypatch.setattr("vitreous.models.shared_copy._compare", lambda *args: seen.append(args[3]))
    assert not torch.equal(vt.wrap(odd).logits(x), before)
    assert seen == ["its own forward", "the model itself, called as it is,"]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m.blocks[1].attn, "scale", m.blocks[1].attn.scale * 2),
        lambda m: setattr(m.blocks[0].norm1, "eps", 0.1),
        lambda m: setattr(m, "pool_include_prefix", True),
        lambda m: setattr(m.blocks[0].mlp, "act", nn.ReLU().eval()),
        lambda m: m.blocks[2].mlp.register_forward_hook(lambda *args: None),
        lambda m: m.pretrained_cfg.update(first=1) if isinstance(m.pretrained_cfg, dict) else setattr(m, "x", 1),
        lambda m: setattr(m.blocks[0].attn, "fused_attn", False),
    ],
)
def test_settings_are_part_of_the_trigger(change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    odd = model()
    odd.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    vision_model, x = vt.wrap(odd), images(odd, 1)
    seen: list[Any] = []
    monkeypatch.setattr("vitreous.models.shared_copy._compare", lambda *args: seen.append(args[3]))
    for count in (2, 0):
        vision_model.logits(x)
        assert len(seen) == count
        seen.clear()
    odd.train().eval()
    with torch.no_grad():
        odd.head.weight.mul_(1.1)
        odd(x)
    vision_model.logits(x)
    assert not seen  # neither the mode, nor weights, nor calls of the user's own
    change(odd)
    vision_model.logits(x)
    assert len(seen) == 2


def test_a_number_in_the_place_of_one_that_is_gone() -> None:
    """Changed twice between two calls: the second number may lie where the first one lay."""
    odd = model()
    vision_model, x = vt.wrap(odd), images(odd, 1)
    for _ in range(20):
        vision_model.logits(x)
        (before,) = _entries[odd].facts.values()
        for _ in range(2):
            odd.blocks[0].norm1.eps = odd.blocks[0].norm1.eps * 1.01
        vision_model.logits(x)
        (after,) = _entries[odd].facts.values()
        assert after is not before


def test_ordinary_models_are_plain() -> None:
    for family, build in EVERY.items():
        assert not deviations(vt.wrap(build()).module), family


# -- what a forward writes -----------------------------------------------------------------------------


class Counting(nn.Module):
    """Counts its calls and follows its inputs, also in evaluation mode; the average matters for what it gives."""

    def __init__(self, inner: nn.Module, by_data: bool = False) -> None:
        super().__init__()
        self.inner, self.by_data, self.calls = inner, by_data, 0
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("average", torch.zeros(()), persistent=False)
        self.total = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        (self.count.data if self.by_data else self.count).add_(1)
        self.average.mul_(0.9).add_(0.1 * x.detach().mean())
        self.total += 1
        self.calls += 1
        return self.inner(x) + self.average


@pytest.mark.parametrize("by_data", [False, True])
def test_what_a_forward_writes_is_the_users(by_data: bool) -> None:
    odd = model()
    odd.blocks[1].mlp.fc1 = layer = Counting(odd.blocks[1].mlp.fc1, by_data)
    x = images(odd, 2)
    with torch.no_grad():
        odd(x)
    before = {name: item.clone() for name, item in layer.named_buffers()} | {"total": layer.total.clone()}
    result = [vt.get_method(spec).attribute(odd, x, target=1) for spec in ("ixg", "generic", "ixg", "generic")]
    explained = [vt.explain(odd, x, "attcat", 1)[0].map for _ in range(2)]
    vt.diagnose(odd)
    for name, value in before.items():
        assert torch.equal(getattr(layer, name), value), name
    assert layer.calls == 1
    assert torch.equal(result[0], result[2])
    assert torch.equal(result[1], result[3])
    assert torch.equal(*map(torch.as_tensor, explained))


def test_what_a_larger_model_writes_is_the_users() -> None:
    inner = model()
    inner.reset_classifier(0)
    odd = nn.Sequential(Counting(inner), nn.Linear(inner.num_features, 4)).double().eval()
    x = images(odd, 1)
    result = [vt.get_method("ixg").attribute(odd, x, target=1) for _ in range(2)]
    assert torch.equal(*result)
    assert float(odd[0].count) == float(odd[0].total) == odd[0].calls == 0


def test_other_buffers_stay_shared() -> None:
    odd = model()
    odd.register_buffer("constant", torch.ones(3))
    odd.blocks[1].mlp.fc1 = Counting(odd.blocks[1].mlp.fc1)
    vision_model = vt.wrap(odd)
    vision_model.verify(images(odd, 1))
    seen = vision_model.shared_copy().module
    assert seen.constant.data_ptr() == odd.constant.data_ptr()
    assert seen.blocks[1].mlp.fc1.count.data_ptr() != odd.blocks[1].mlp.fc1.count.data_ptr()
    assert seen.blocks[1].mlp.fc1.inner.weight.data_ptr() == odd.blocks[1].mlp.fc1.inner.weight.data_ptr()
