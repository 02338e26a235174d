"""The ladder on convolutional networks: three steps that never ask for what a network has no rule for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vitreous as vt
from families import images
from families_cnn import FAMILIES
from vitreous.registry.defaults import EFFORT_LEVELS, display_name


def names(spec: str) -> set[str]:
    return {part.info.name for part in vt.get_method(spec).components()}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_has_all_three_steps(family: str) -> None:
    model = vt.wrap(FAMILIES[family]())
    quick, careful, best = (vt.recommended_method(step, model) for step in EFFORT_LEVELS)
    assert [vt.get_method(each).spec for each in (quick, careful, best)] == [quick, careful, best]
    assert [display_name(each) for each in (quick, careful, best)] == list(EFFORT_LEVELS)
    assert names(quick) == {"consensus", "lrp", "logprob", "layercam", "input_x_gradient"}
    assert names(careful) == names(quick) | {"coiba"}
    assert names(best) == names(careful) | {"refine"}
    x = images(model, 2)
    found = vt.get_method(quick).attribute(model, x, target=1)
    assert torch.isfinite(found).all()
    assert found.shape[1:] == model.grid()


def test_a_plain_explain_is_quick() -> None:
    model = FAMILIES["resnet"]()
    (plain,) = vt.explain(model, images(model, 1))
    assert plain.method == vt.recommended_method("quick", model)


def test_the_longer_steps_run() -> None:
    model = vt.wrap(FAMILIES["resnet"]())
    x = images(model, 1)
    careful, best = (
        vt.recommended_method(step, model).replace("samples=3", "samples=2, steps=2") for step in EFFORT_LEVELS[1:]
    )
    maps = [
        vt.get_method(each).attribute(model, x, target=1)
        for each in (careful, best.replace("doubt", "masks=32, doubt"))
    ]
    assert all(torch.isfinite(found).all() for found in maps)
    assert not torch.equal(*maps)


def sharp() -> nn.Module:
    """A network with an activation that relevance has no rule for."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.Hardswish(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    model.image_size = (16, 16)  # type: ignore[assignment]
    return model.eval()


def test_where_relevance_has_no_rule_the_steps_do_without() -> None:
    model = sharp()
    with pytest.warns(vt.VitreousWarning, match="how its pictures are prepared"):
        vision_model = vt.wrap(model, layer="2")
    with pytest.raises(vt.VitreousError, match="hardswish"):
        vt.get_method("lrp@epsilon_plus").attribute(vision_model, torch.rand(1, 3, 16, 16))
    spelled = [vt.recommended_method(step, vision_model) for step in EFFORT_LEVELS]
    assert [display_name(each) for each in spelled] == list(EFFORT_LEVELS)
    assert all("lrp" not in names(each) for each in spelled)
    assert names(spelled[0]) == {"logprob", "consensus", "layercam", "integrated_gradients"}
    assert torch.isfinite(vt.get_method(spelled[0]).attribute(vision_model, torch.rand(2, 3, 16, 16))).all()


def test_asking_leaves_the_network_alone() -> None:
    model = FAMILIES["vgg"]().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    vt.recommended_method("quick", model)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
