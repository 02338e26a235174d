"""The check-up as it is used: cost, nothing left behind, which model, the command."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous as vt
from commands import MODEL, photographs, run
from families import FAMILIES, _build, images, verified
from photographs import NAMES, photo
from vitreous.errors import ModelError, TargetError, VitreousError
from vitreous.results.diagnostics import CheckResult


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](), name="tiny")


# -- promises ------------------------------------------------------------------------------------------


def test_the_same_each_time_and_alone(model: vt.VisionModel) -> None:
    together = vt.explain(model, [photo(0), photo(1), photo(2)], "smooth(ixg, samples=2)")
    first = [vt.check(item).to_json() for item in together]
    torch.manual_seed(123)
    assert [vt.check(item).to_json() for item in together] == first
    alone = vt.check(vt.explain(model, photo(1), "smooth(ixg, samples=2)"))
    for test, report in zip(alone.tests, first[1]["tests"], strict=True):
        assert (test.name, test.verdict) == (report["name"], report["verdict"])
        assert dict(test.numbers) == pytest.approx(report["numbers"], abs=1e-4)


def test_progress_ends_at_all_of_it_and_may_end_it(model: vt.VisionModel) -> None:
    e = vt.explain(model, photo(), "smooth(ixg, samples=3)")
    report: list[float] = []
    vt.check(e, progress=lambda done, total: report.append(done / total))
    assert report == sorted(report)
    assert 0 < report[0] < report[-1] <= 1

    def stop(done: float, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vt.check(e, progress=stop)
    assert vt.check(e).to_json() == vt.check(e).to_json()


def test_what_it_costs(model: vt.VisionModel) -> None:
    e = vt.explain(model, photo(), "generic")
    seen: list[int] = []
    handle = model.module.patch_embed.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    verified(model)
    seen.clear()
    result = vt.check(e)["faithfulness"].numbers
    handle.remove()
    pictures = 3 + 2 * result["places"]  # as it is, without and alone; and with the patches elsewhere
    assert sum(seen) == 1 + pictures + 3  # deterministic: another seed, another class, another head


def state(vision_model: vt.VisionModel) -> Any:
    model = vision_model.module
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    flags = [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    return hooks, flags, [module.training for module in model.modules()], sorted(vars(vision_model))


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_nothing_is_left_behind_also_after_an_exception(at: int) -> None:
    """The model breaks at the clean image, at the blurred ones, at another seed, at the runner-up, under the head."""
    model = vt.wrap(FAMILIES["vit"]().train())
    weights = copy.deepcopy(model.module.state_dict())
    e = vt.explain(model, photo(), "generic", 1)
    runs = 0

    def broken(*_: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == at:
            raise KeyboardInterrupt

    handle = model.module.norm.register_forward_hook(broken)
    at += 2  # before that it is verified once more, for the hook is new
    before = state(model)
    with pytest.raises(KeyboardInterrupt):
        vt.check(e)
    assert state(model) == before
    handle.remove()
    assert all(torch.equal(value, weights[name]) for name, value in model.module.state_dict().items())
    assert vt.check(e).tests


# -- which model ---------------------------------------------------------------------------------------


def test_a_loaded_explanation_needs_its_model(model: vt.VisionModel, tmp_path: Path) -> None:
    e = vt.explain(model, photo(), "generic", 3)
    loaded = vt.Explanation.load(e.save(tmp_path / "e"))
    with pytest.raises(VitreousError, match=r"^tiny, the model of this explanation, is not at hand; give it to check$"):
        vt.check(loaded)
    assert vt.check(loaded, model).to_json() == vt.check(loaded, model.module).to_json() == vt.check(e).to_json()


def test_the_model_is_not_kept_alive() -> None:
    e = vt.explain(vt.wrap(FAMILIES["vit"]()), photo(), "ixg")
    gc.collect()
    with pytest.raises(VitreousError, match="not at hand"):
        vt.check(e)
    model = FAMILIES["vit"]()
    assert vt.check(vt.explain(model, photo(), "ixg")).tests  # a bare module is remembered as well


def test_pickles_and_copies_leave_the_model_behind(model: vt.VisionModel) -> None:
    e = vt.explain(model, photo(), "ixg")
    for other in (pickle.loads(pickle.dumps(e)), copy.deepcopy(e)):
        assert torch.equal(other.map, e.map)
        with pytest.raises(VitreousError, match="not at hand"):
            vt.check(other)
    assert vt.check(dataclasses.replace(e, name="another")).tests


def test_another_model_is_refused(model: vt.VisionModel) -> None:
    e = vt.explain(model, photo(), "ixg", 3)
    with pytest.raises(
        ModelError, match=r"gives class \d \d\.\d+, the explanation has \d\.\d+: it is of another model"
    ):
        vt.check(e, FAMILIES["gap"]())
    with pytest.raises(TargetError, match="has no class 77"):
        vt.check(dataclasses.replace(e, explained=e.explained._replace(target=77)))


def test_a_tensor_that_is_no_picture_has_to_be_given(model: vt.VisionModel) -> None:
    inputs = 3 * images(model, 1)[0]
    e = vt.explain(model, inputs, "ixg")
    with pytest.raises(ModelError, match="give inputs="):
        vt.check(e)
    assert vt.check(e, inputs=inputs)["stability"].verdict == "-"
    with pytest.raises(ModelError, match="one input, got 2"):
        vt.check(e, inputs=torch.stack([inputs, inputs]))


def test_a_function_is_no_class(model: vt.VisionModel) -> None:
    e = vt.explain(model, photo(), "ixg", lambda logits: logits.std(dim=1))
    with pytest.raises(TargetError, match="of the function <lambda>"):
        vt.check(e)


def test_one_logit() -> None:
    model = vt.wrap(_build(num_classes=1))
    result = vt.check(vt.explain(model, photo(), "ixg", 0))
    assert result["runner-up"].numbers["class"] == 1
    assert result["runner-up"].numbers["agreement"] == pytest.approx(-1)  # the other class is the other sign
    assert result["head"].numbers["agreement"] < 0.99


# -- what becomes of it --------------------------------------------------------------------------------


def test_str_and_json(model: vt.VisionModel, tmp_path: Path) -> None:
    e = vt.explain(model, photo(), "generic", 1)
    result = vt.check(e)
    lines = str(result).splitlines()
    assert lines[0] == f"{result.verdict}: {result.sentence}"
    assert [line.split()[:2] for line in lines[1:]] == [[test.name, test.verdict] for test in result.tests]
    report = result.to_json()
    assert list(report) == ["verdict", "sentence", "tests"]
    assert all(list(test) == ["name", "verdict", "sentence", "numbers"] for test in report["tests"])
    assert CheckResult.from_json(json.loads(json.dumps(report))).to_json() == report
    assert e.manifest()["check"] is None
    saved = dataclasses.replace(e, check_result=result).save(tmp_path / "e")
    assert json.loads((saved / "manifest.json").read_text())["check"] == report
    again = vt.Explanation.load(saved).check_result
    assert again is not None
    assert str(again) == str(result)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


def test_command(here: Path) -> None:
    done = run("explain", "a.png", "b.png", *MODEL, "--method", "generic", "--check", "--out", "out")
    assert (done.code, done.err) == (0, "")
    torch.manual_seed(0)
    model = vt.load(MODEL[1], pretrained=False, img_size=32)
    for name in ("a", "b"):
        expected = vt.check(vt.explain(model, f"{name}.png", "generic"))
        assert f"{name}.png: {expected}\n" in done.out
        (manifest,) = (here / "out" / name).glob("generic/*/manifest.json")
        report = json.loads(manifest.read_text())["check"]
        assert report["verdict"] == expected.verdict
        assert [test["name"] for test in report["tests"]] == NAMES
    assert done.out.index("saved in") < done.out.index("a.png: ") < done.out.index("b.png: ")


def test_command_json_and_quiet(here: Path) -> None:
    rows = json.loads(run("explain", "a.png", "more", *MODEL, "--method", "rollout", "--check", "--json").out)
    assert [row["check"]["tests"][3]["verdict"] for row in rows["explanations"]] == ["weak"] * 3
    simple = json.loads(run("explain", "a.png", *MODEL, "--json").out)["explanations"][0]
    assert simple["check"] is None
    assert run("explain", "a.png", *MODEL, "--check", "--quiet", "--out", "q") == (0, "", "")
    (manifest,) = (here / "q/a").glob("*/*/manifest.json")
    assert json.loads(manifest.read_text())["check"]["tests"]


def test_command_with_a_bad_picture(here: Path) -> None:
    done = run("explain", "text.png", "b.png", *MODEL, "--check", "--out", "out")
    assert done.code == 1
    assert "skipped text.png" in done.err
    assert "\nb.png: " in done.out
