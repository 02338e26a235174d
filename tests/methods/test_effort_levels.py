"""The ladder: three steps for every family, each nothing but a spelling; and the parts it is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import vitreous as vt
from families import FAMILIES, images, proven
from vitreous.registry.defaults import EFFORT_LEVELS, METHOD, display_name, effort_spec
from zoo import EVERY

# -- steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", list(EVERY))
def test_every_family_has_all_three_steps(family: str) -> None:
    model = vt.wrap(EVERY[family]())
    spelled = [vt.recommended_method(step, model) for step in EFFORT_LEVELS]
    assert len(set(spelled)) == 3
    assert [vt.get_method(each).spec for each in spelled] == spelled
    assert [display_name(each) for each in spelled] == list(EFFORT_LEVELS)
    costs = [vt.get_method(each).num_forwards(model) for each in spelled]
    assert costs == sorted(costs)
    assert costs[1] <= 40
    x = images(model, 2)
    for each in spelled[:2]:
        found = vt.get_method(each).attribute(model, x, target=1)
        assert torch.isfinite(found).all()
    names = {part.info.name for part in vt.get_method(spelled[2]).components()}
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
    found, extras = vt.get_method(best).attribute(vision_model, x, target=1, extras=True)
    assert found.shape == (2, *vision_model.grid(x))
    assert extras["ranks"].shape[1] == 2
    mean_rank = extras["ranks"].double().mean(dim=1).flatten(1)
    careful = (
        vt.get_method(vt.recommended_method("careful", vision_model)).attribute(vision_model, x, target=1).flatten(1)
    )
    assert (found < 0).any()
    for map, rank, values in zip(found.flatten(1), mean_rank, careful, strict=True):
        pairs = sorted(zip(rank.tolist(), map.tolist(), strict=True))
        assert [value for _, value in pairs] == sorted(map.tolist())  # in the order of the mean ranks
        assert map.sum() == pytest.approx(float(values.sum()), rel=1e-4)  # with the values of the step below


def test_a_plain_explain_is_quick() -> None:
    model = FAMILIES["vit"]()
    x = images(model, 1)
    plain = vt.explain(model, x)[0]
    assert plain.method == METHOD
    for given in ({"effort": "quick"}, {"method": METHOD}):
        again = vt.explain(model, x, **given)[0]
        assert torch.equal(again.map, plain.map)
    assert vt.question(model, effort="careful") != vt.question(model) == vt.question(model, METHOD)
    assert plain.caption.startswith("quick: ")


def test_quick_takes_two_passes() -> None:
    """One through the network as it is, one through the frozen one; the prediction comes from the first."""
    model, runs = FAMILIES["vit"](), []
    x = images(model, 3)
    with model.patch_embed.register_forward_hook(lambda *_: runs.append(1)):
        proven(model)
        runs.clear()
        vt.explain(model, x)
    assert len(runs) == 2


def test_windows_get_their_own() -> None:
    model = vt.wrap(EVERY["swin"]())
    assert vt.explain(model, images(model, 1))[0].method == "logprob(plus(decompx, combine=scaled))"


def test_compare_adds_the_step() -> None:
    model = FAMILIES["vit"]()
    x = images(model, 1)[0]
    found = vt.compare(model, x, ["ixg"], effort="careful")
    assert [each.method for each in found] == ["ixg", vt.recommended_method("careful", model)]
    assert found["careful"] is found[1]
    assert [each.method for each in vt.compare(model, x, ["ixg"])] == ["ixg"]
    usual = vt.compare(model, x)
    assert display_name(usual[-1].method) == "quick"
    assert len(usual) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"effort": "fast"}, "effort='fast' is not one of quick, careful, best"),
        ({"effort": "best", "method": "ixg"}, "give a method or an effort, not both: ixg and best"),
        ({"effort": ""}, "effort='' is not one of"),
    ],
)
def test_bad_steps(given: dict[str, str], said: str) -> None:
    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match=said):
        vt.explain(model, images(model, 1), **given)


def test_a_step_is_a_method_too() -> None:
    assert [vt.get_method(step).spec for step in EFFORT_LEVELS] == [
        vt.recommended_method(step) for step in EFFORT_LEVELS
    ]
    assert vt.get_method("consensus(quick, rollout)").spec == f"consensus({METHOD}, rollout)"


def test_half_precision_is_spelled_out() -> None:
    for step in EFFORT_LEVELS[1:]:
        spelled = effort_spec(step, half=True)
        assert vt.get_method(spelled).spec == spelled
        parts = vt.get_method(spelled).components()
        assert {part.info.name for part in parts if getattr(part, "half", False)} == (
            {"coiba"} if step == "careful" else {"coiba", "refine"}
        )
        assert display_name(spelled) == step
    assert effort_spec("quick", half=True) == METHOD


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from vitreous.cli.main import app

    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save("cat.png")
    small = ["cat.png", "-m", "world", "-q"]
    assert CliRunner().invoke(app, ["explain", *small]).exit_code == 0
    (made,) = Path("explanations/cat").iterdir()
    assert made.name == "quick"
    assert CliRunner().invoke(app, ["explain", *small, "--effort", "careful"]).exit_code == 0
    assert sorted(path.name for path in Path("explanations/cat").iterdir()) == ["careful", "quick"]
    for wrong in (["--effort", "slow"], ["--effort", "best", "--method", "ixg"]):
        refused = CliRunner().invoke(app, ["explain", *small, *wrong])
        assert refused.exit_code != 0
        assert wrong[1] in str(refused.exception or refused.output)


# -- what they are made of -----------------------------------------------------------------------------


def witnessed(terms: Tensor, seen: Tensor, power: float) -> np.ndarray:
    """The sum over start layers, number by number."""
    total = np.zeros(terms[0].numel())
    for term in terms.double().flatten(1).numpy():
        agreed = np.corrcoef(term, seen.double().flatten().numpy())[0, 1]
        total += max(0.0, agreed) ** power * term / np.abs(term).mean()
    return total


@pytest.mark.parametrize("options", ["", ", power=2.0", ", start=1"])
@pytest.mark.parametrize("family", ["vit", "registers", "gap", "hf_vit"])
def test_a_witness_weighs_the_start_layers(family: str, options: str) -> None:
    model = vt.wrap(EVERY[family]().double())
    x = images(model, 2).double()
    how = vt.get_method(f"witness(decompx, generic{options})")
    found, extras = how.attribute(model, x, target=1, extras=True)
    _, told = vt.get_method(f"plus(decompx, start={how.start})").attribute(model, x, target=1, extras=True)
    seen = vt.get_method("generic").attribute(model, x, target=1)
    for i in range(2):
        expected = witnessed(told["layers"][i], seen[i], how.power)
        if not expected.any():
            continue
        np.testing.assert_allclose(found[i].flatten(), expected, rtol=1e-8, atol=1e-10)
    assert torch.equal(extras["layers"], told["layers"])
    assert extras["weights"].shape == extras["layers"].shape[:2]
    assert (extras["weights"] >= 0).all()
    assert (extras["weights"] <= 1).all()


def test_without_a_witness_all_layers_count_the_same() -> None:
    model = FAMILIES["vit"]()
    x = images(model, 2)
    found, extras = vt.get_method("witness(decompx, constant)").attribute(model, x, 1, extras=True)
    assert (extras["weights"] == 1).all()
    assert torch.allclose(found, vt.get_method("plus(decompx, combine=scaled)").attribute(model, x, 1), rtol=1e-5)


def test_a_witness_of_pixels_and_of_windows() -> None:
    for family, spec in (("vit", "witness(decompx, saliency)"), ("swin", "witness(decompx, gradcam)")):
        model = vt.wrap(EVERY[family]())
        assert torch.isfinite(vt.get_method(spec).attribute(model, images(model, 2), 1)).all()


def test_a_noisy_layer_is_left_out() -> None:
    """What it is for: one start layer is noise and has most of the mass."""
    from vitreous.methods.combinators import borne_out

    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(4, 16, 16, generator=generator)
    terms = torch.stack([50 * torch.randn(4, 16, 16, generator=generator), truth, 2 * truth], dim=1)
    weights = borne_out(terms, truth, 1.0)
    assert (weights[:, 0] < 0.2).all()
    assert torch.allclose(weights[:, 1:], torch.ones(4, 2))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("witness(decompx)", "by"),
        ("witness(decompx, generic, power=0)", "power=0.0 must be above 0"),
        ("witness(decompx, generic, via=sideways)", "via"),
    ],
)
def test_a_witness_badly_called(spec: str, said: str) -> None:
    with pytest.raises(vt.VitreousError, match=said):
        vt.get_method(spec)


def test_maps_scaled_by_their_mean_size() -> None:
    model = FAMILIES["vit"]().double()
    x = images(model, 2).double()
    found = vt.get_method("consensus(ixg, decompx, combine=scaled, weights='3,1')").attribute(model, x, 1)
    maps = [vt.get_method(name).attribute(model, x, 1) for name in ("ixg", "decompx")]
    scaled = [map_ / map_.abs().mean(dim=(1, 2), keepdim=True) for map_ in maps]
    assert torch.allclose(found, 0.75 * scaled[0] + 0.25 * scaled[1], atol=1e-12)
