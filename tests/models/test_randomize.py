"""Randomised models of every family: what is drawn anew, what is shared, and what nobody may touch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import ModelError, SpecError
from vitreous.models.randomize import randomised, stage_parameters, stages
from zoo import EVERY

UNMET = ("text_", "mask_token")  # no image meets them


@pytest.fixture(params=EVERY)
def model(request: pytest.FixtureRequest) -> Any:
    built = EVERY[request.param]()
    return vt.wrap(built)


def tensors(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.module.named_parameters())


def test_every_parameter_has_one_stage(model: Any) -> None:
    parts = stage_parameters(model)
    assert tuple(parts) == stages(model)
    assert len(parts) == model.depth + 3
    all_names = [name for names in parts.values() for name in names]
    assert len(all_names) == len(set(all_names))
    left = set(tensors(model)) - set(all_names)
    assert all(any(word in name for word in UNMET) for name in left)
    for layer in range(model.depth):
        own = {id(parameter) for parameter in model.get_block(layer).parameters()}
        mine = {name for name, tensor in tensors(model).items() if id(tensor) in own}
        assert mine <= set(parts[f"block {layer}"])
        assert mine
    assert parts["head"]
    assert parts["embeddings"]


@pytest.mark.parametrize("which", ["head", "norm", "block 0", "embeddings"])
def test_one_stage_changes_and_nothing_else(model: Any, which: str) -> None:
    before = {name: value.detach().clone() for name, value in model.module.state_dict().items()}
    mine = set(stage_parameters(model)[which])
    seen = randomised(model, [which], seed=3)
    own, new = tensors(model), tensors(seen)
    for name, value in own.items():
        if name not in mine or value.numel() == 1:
            assert new[name].data_ptr() == value.data_ptr(), f"{name} is not shared"
        else:
            assert new[name].data_ptr() != value.data_ptr()
            assert not torch.equal(new[name], value), f"{name} is what it was"
            assert torch.isfinite(new[name]).all()
            assert (new[name].shape, new[name].dtype) == (value.shape, value.dtype)
    for name, value in dict(model.module.named_buffers()).items():
        assert dict(seen.module.named_buffers())[name].data_ptr() == value.data_ptr()
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} of the user's model was touched"


def test_the_view_runs_is_proven_and_is_its_own(model: Any) -> None:
    x = images(model, 2)
    own = model.logits(x)
    seen = randomised(model, stages(model), seed=0)
    logits = seen.logits(x)  # compared with the forward of the randomised model itself
    assert logits.shape == own.shape
    assert torch.isfinite(logits).all()
    assert not torch.allclose(logits, own)
    assert torch.equal(model.logits(x), own)
    assert seen.fingerprint != model.fingerprint
    assert torch.equal(randomised(model, stages(model), seed=0).logits(x), logits), "the same again"
    assert not torch.equal(randomised(model, stages(model), seed=1).logits(x), logits)


def test_streams() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    one, other = (tensors(randomised(model, stages(model), seed)) for seed in (0, 1))
    sampled = [name for name in one if one[name].ndim > 1]
    assert not any(torch.equal(one[name], other[name]) for name in sampled), "seeds differ"
    blocks = [one[f"blocks.{layer}.attn.qkv.weight"] for layer in range(3)]
    assert not torch.equal(blocks[0], blocks[1])
    assert not torch.equal(blocks[1], blocks[2])
    alone = tensors(randomised(model, ["block 1"], 0))
    assert torch.equal(alone["blocks.1.mlp.fc1.weight"], one["blocks.1.mlp.fc1.weight"]), "whatever else is random"
    again = tensors(randomised(vt.wrap(copy.deepcopy(model.module)), stages(model), 0))
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_what_is_drawn() -> None:
    model = FAMILIES["deit3"]()
    vision_model = vt.wrap(model)
    own, new = dict(model.named_parameters()), tensors(randomised(vision_model, stages(vision_model), 0))
    for name, value in new.items():
        if "norm" in name:
            assert (value == (1 if name.endswith("weight") else 0)).all(), name
        elif "gamma" in name:
            assert torch.equal(value.sort().values, own[name].sort().values), "LayerScale is dealt out anew"
        elif name.endswith("bias"):
            assert (value == 0).all(), name
        elif value.numel() > 500:
            assert value.std().item() == pytest.approx(0.02, rel=0.1), name
            assert abs(value.mean().item()) < 0.003
    scaled = tensors(randomised(vision_model, stages(vision_model), 0, init="own"))
    weight = "blocks.0.mlp.fc1.weight"
    torch.testing.assert_close(scaled[weight], new[weight] / 0.02 * own[weight].double().std().item())
    selected = tensors(randomised(vision_model, stages(vision_model), 0, norms="keep"))
    dealt = tensors(randomised(vision_model, stages(vision_model), 0, norms="permute"))
    for name in (value for value in own if "norm" in value):
        assert torch.equal(selected[name], own[name])
        assert torch.equal(dealt[name].sort().values, own[name].sort().values)
        assert not torch.equal(dealt[name], own[name])
    still = tensors(randomised(vision_model, stages(vision_model), 0, tokens=False))
    assert [name for name in own if torch.equal(still[name], own[name])] == ["cls_token", "pos_embed"]


def test_projections_of_torch_attention_are_drawn() -> None:
    """They have no ``reset_parameters``, so that code which calls it leaves them trained."""
    model = vt.wrap(EVERY["tv_vit"]())
    new = tensors(randomised(model, ["block 2"], 0))
    name = next(value for value in new if "layer_2" in value and value.endswith("in_proj_weight"))
    assert new[name].std().item() == pytest.approx(0.02, rel=0.1)


def test_tied_and_frozen_parameters() -> None:
    model = FAMILIES["vit"]()
    model.blocks[2].mlp.fc1.weight = model.blocks[0].mlp.fc1.weight
    model.requires_grad_(False)
    vision_model = vt.wrap(model)
    parts = stage_parameters(vision_model)
    assert "blocks.0.mlp.fc1.weight" in parts["block 0"]
    assert not any("mlp.fc1.weight" in name for name in parts["block 2"])
    seen: Any = randomised(vision_model, ["block 0"], 0)
    assert seen.module.blocks[2].mlp.fc1.weight is seen.module.blocks[0].mlp.fc1.weight
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_model_around_a_known_one() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = FAMILIES["vit"]()
            self.stem, self.top = nn.Conv2d(3, 3, 1), nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(self.body(self.stem(x)))

    model = vt.wrap(Around().eval())
    parts = stage_parameters(model)
    assert parts["head"] == ("top.2.weight", "top.2.bias")
    assert {"top.0.weight", "body.head.weight", "body.norm.weight"} <= set(parts["norm"])
    assert {"stem.weight", "stem.bias", "body.cls_token"} <= set(parts["embeddings"])
    assert randomised(model, stages(model), 0).logits(images(model, 1)).shape == (1, 4)


def test_methods_explain_it() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    x = images(model, 2)
    own = vt.get_method("generic").attribute(model, x, target=0)
    seen = randomised(model, ["block 2", "block 1"], 0)
    assert not torch.allclose(vt.get_method("generic").attribute(seen, x, target=0), own)
    assert torch.equal(vt.get_method("generic").attribute(model, x, target=0), own)


def test_refused() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    with pytest.raises(
        ModelError, match="has no stage 'block 3', but head, norm, block 2, block 1, block 0, embeddings"
    ):
        randomised(model, ["block 3"])
    with pytest.raises(ModelError, match="only whole models are randomised"):
        randomised(model.suffix(1), ["head"])
    with pytest.raises(SpecError, match="norms='gone' is not one of reset, permute, keep"):
        randomised(model, ["head"], norms="gone")
    with pytest.raises(SpecError, match="init='best' is not one of fixed, own"):
        randomised(model, ["head"], init="best")
