"""Effort levels: three for every family, each nothing but a spec, and none that asks for what a model cannot do."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import vitreous as vt
from families import FAMILIES, images, verified
from families_cnn import FAMILIES as CNNS
from vitreous.methods import resolve_method
from vitreous.registry.defaults import EFFORT_LEVELS, METHOD, display_name, effort_spec
from zoo import EVERY


@pytest.mark.parametrize("family", list(EVERY))
def test_every_family_has_all_three_steps(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    specs = [vt.recommended_method(step, model) for step in EFFORT_LEVELS]
    assert len(set(specs)) == 3
    assert [vt.get_method(item).spec for item in specs] == specs
    assert [display_name(item) for item in specs] == list(EFFORT_LEVELS)
    costs = [vt.get_method(item).num_forwards(model) for item in specs]
    assert costs == sorted(costs)
    assert costs[1] <= 40
    for item in specs[:2]:
        assert torch.isfinite(vt.get_method(item).attribute(model, images(model, 1), target=1)).all()
    names = {part.info.name for part in vt.get_method(specs[2]).components()}
    assert ("refine" in names) is model.can_drop_tokens
    if model.attention != "global":
        assert not names & {"grad_rollout", "attcat"}


def test_without_a_model_the_steps_are_those_of_most() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    assert [vt.recommended_method(step) for step in EFFORT_LEVELS] == [
        vt.recommended_method(step, model) for step in EFFORT_LEVELS
    ]
    assert vt.recommended_method() == METHOD


def test_the_best_step_runs() -> None:
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    best = vt.recommended_method("best", vision_model).replace("spread=0.3", "spread=0.3, masks=16")
    actual, extras = vt.get_method(best).attribute(vision_model, x, target=1, extras=True)
    assert actual.shape == (2, *vision_model.grid(x))
    assert extras["ranks"].shape[1] == 2
    mean_rank = extras["ranks"].double().mean(dim=1).flatten(1)
    careful_spec = (
        vt.get_method(vt.recommended_method("careful", vision_model)).attribute(vision_model, x, target=1).flatten(1)
    )
    assert (actual < 0).any()
    for map, rank, values in zip(actual.flatten(1), mean_rank, careful_spec, strict=True):
        pairs = sorted(zip(rank.tolist(), map.tolist(), strict=True))
        assert [value for _, value in pairs] == sorted(map.tolist())  # in the order of the mean ranks
        assert map.sum() == pytest.approx(float(values.sum()), rel=1e-4)  # with the values of the step below


def test_a_plain_explain_is_quick() -> None:
    model = FAMILIES["vit"]()
    x = images(model, 1)
    unchanged = vt.explain(model, x)[0]
    assert unchanged.method == METHOD
    for options in ({"effort": "quick"}, {"method": METHOD}):
        again = vt.explain(model, x, **options)[0]
        assert torch.equal(again.map, unchanged.map)
    choices = ((None, None), (None, "careful"), (METHOD, None))
    quick, thorough, named = (resolve_method(*choice, vt.wrap(model)) for choice in choices)
    assert thorough != quick == named
    assert unchanged.caption.startswith("quick: ")


def test_quick_takes_two_passes() -> None:
    """One through the network as it is, one through the frozen one; the prediction comes from the first."""
    model, runs = FAMILIES["vit"](), []
    x = images(model, 3)
    with model.patch_embed.register_forward_hook(lambda *_: runs.append(1)):
        verified(model)
        runs.clear()
        vt.explain(model, x)
    assert len(runs) == 2


def test_windows_get_their_own() -> None:
    model = vt.wrap(EVERY["swin"]())
    assert vt.explain(model, images(model, 1))[0].method == "logprob(plus(decompx, combine=scaled))"


def test_compare_adds_the_step() -> None:
    model = FAMILIES["vit"]()
    x = images(model, 1)[0]
    actual = vt.compare(model, x, ["ixg"], effort="careful")
    assert [item.method for item in actual] == ["ixg", vt.recommended_method("careful", model)]
    assert actual["careful"] is actual[1]
    assert [item.method for item in vt.compare(model, x, ["ixg"])] == ["ixg"]
    usual = vt.compare(model, x)
    assert display_name(usual[-1].method) == "quick"
    assert len(usual) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "fast"}, "effort='fast' is not one of quick, careful, best"),
        ({"effort": "best", "method": "ixg"}, "give a method or an effort, not both: ixg and best"),
        ({"effort": ""}, "effort='' is not one of"),
    ],
)
def test_bad_steps(options: dict[str, str], message: str) -> None:
    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match=message):
        vt.explain(model, images(model, 1), **options)


def test_a_step_is_a_method_too() -> None:
    assert [vt.get_method(step).spec for step in EFFORT_LEVELS] == [
        vt.recommended_method(step) for step in EFFORT_LEVELS
    ]
    assert vt.get_method("consensus(quick, rollout)").spec == f"consensus({METHOD}, rollout)"


def test_half_precision_is_in_the_spec() -> None:
    for step in EFFORT_LEVELS[1:]:
        specs = effort_spec(step, half=True)
        assert vt.get_method(specs).spec == specs
        parts = vt.get_method(specs).components()
        assert {part.info.name for part in parts if getattr(part, "half", False)} == (
            {"coiba"} if step == "careful" else {"coiba", "refine"}
        )
        assert display_name(specs) == step
    assert effort_spec("quick", half=True) == METHOD


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from vitreous.cli import app

    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save("cat.png")
    small = ["cat.png", "-m", "world", "-q"]
    assert CliRunner().invoke(app, ["explain", *small]).exit_code == 0
    (built,) = Path("explanations/cat").iterdir()
    assert built.name == "quick"
    assert CliRunner().invoke(app, ["explain", *small, "--effort", "careful"]).exit_code == 0
    assert sorted(path.name for path in Path("explanations/cat").iterdir()) == ["careful", "quick"]
    for wrong in (["--effort", "slow"], ["--effort", "best", "--method", "ixg"]):
        refused = CliRunner().invoke(app, ["explain", *small, *wrong])
        assert refused.exit_code != 0
        assert wrong[1] in str(refused.exception or refused.output)


def test_defaults_are_the_same_in_python_and_on_the_command_line() -> None:
    from vitreous.cli import app
    from vitreous.evaluation.evaluate import evaluate
    from vitreous.registry import defaults

    commands = {
        registered_command.callback.__name__: inspect.signature(registered_command.callback).parameters
        for registered_command in app.registered_commands
    }
    python = {item.__name__: inspect.signature(item).parameters for item in (vt.explain, vt.compare, evaluate)}
    for command, option, name in (
        ("explain", "method", "method"),
        ("explain", "effort", "effort"),
        ("compare", "method", "methods"),
        ("compare", "effort", "effort"),
    ):
        assert commands[command][option].default is python[command][name].default is None  # the effort level decides
    assert commands["evaluate"]["method"].default is python["evaluate"]["methods"].default is None
    assert python["evaluate"]["metrics"].default is None
    for name in ("output", "seed"):
        assert commands["explain"][name].default == python["explain"][name].default
    assert (commands["evaluate"]["target"].default, python["evaluate"]["target"].default) == ("pred", None)
    for name in (
        defaults.METHOD,
        *defaults.comparison_methods(),
        *defaults.comparison_methods(False),
        *defaults.evaluation_methods(),
        *defaults.CONTROLS,
    ):
        assert vt.get_method(name).spec == name
    assert [vt.get_metric(name).spec for name in defaults.METRICS] == list(defaults.METRICS)


# -- convolutional networks --------------------------------------------------------------------------------------------


def names(spec: str) -> set[str]:
    return {part.info.name for part in vt.get_method(spec).components()}


@pytest.mark.parametrize("family", list(CNNS))
def test_every_convolutional_family_has_all_three_steps(family: str) -> None:
    model = vt.wrap(CNNS[family]())
    quick, careful_spec, best = (vt.recommended_method(step, model) for step in EFFORT_LEVELS)
    assert [vt.get_method(item).spec for item in (quick, careful_spec, best)] == [quick, careful_spec, best]
    assert [display_name(item) for item in (quick, careful_spec, best)] == list(EFFORT_LEVELS)
    assert names(quick) == {"consensus", "lrp", "logprob", "layercam", "input_x_gradient"}
    assert names(careful_spec) == names(quick) | {"coiba"}
    assert names(best) == names(careful_spec) | {"refine"}
    x = images(model, 2)
    actual = vt.get_method(quick).attribute(model, x, target=1)
    assert torch.isfinite(actual).all()
    assert actual.shape[1:] == model.grid()


def test_a_plain_explain_of_a_convolutional_network_is_quick() -> None:
    model = CNNS["resnet"]()
    (unchanged,) = vt.explain(model, images(model, 1))
    assert unchanged.method == vt.recommended_method("quick", model)


def test_the_longer_steps_run() -> None:
    model = vt.wrap(CNNS["resnet"]())
    x = images(model, 1)
    careful_spec, best = (
        vt.recommended_method(step, model).replace("samples=3", "samples=2, steps=2") for step in EFFORT_LEVELS[1:]
    )
    maps = [
        vt.get_method(item).attribute(model, x, target=1)
        for item in (careful_spec, best.replace("doubt", "masks=32, doubt"))
    ]
    assert all(torch.isfinite(actual).all() for actual in maps)
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
    specs = [vt.recommended_method(step, vision_model) for step in EFFORT_LEVELS]
    assert [display_name(item) for item in specs] == list(EFFORT_LEVELS)
    assert all("lrp" not in names(item) for item in specs)
    assert names(specs[0]) == {"logprob", "consensus", "layercam", "integrated_gradients"}
    assert torch.isfinite(vt.get_method(specs[0]).attribute(vision_model, torch.rand(2, 3, 16, 16))).all()


def test_asking_leaves_the_network_alone() -> None:
    model = CNNS["vgg"]().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    vt.recommended_method("quick", model)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
