"""Extending a run: what is added stays, what is removed goes, a plain list replaces, and the run can be made again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from commands import Result
from commands import run as command
from tiny_benchmark import QUICK, TOML, bench, tiny, two_sets
from vitreous.benchmark.changes import Changes, apply_changes, resume_protocol
from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import Protocol, read
from vitreous.benchmark.protocol_io import protocol_from_json
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.worker import Worker
from vitreous.errors import VitreousError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML.format(images=2, steps=2, unit=2))
    return path


def ran(file: Path, *more: Any) -> Result:
    done = command("bench", "run", file, "--out", file.parent / "run", *QUICK, *more)
    assert done.code == 0, done.err
    return done


def protocol_of(file: Path) -> Protocol:
    manifest = Store(file.parent / "run").manifest()
    assert manifest is not None
    return protocol_from_json(manifest["wanted"]["protocol"])


def lists(file: Path) -> tuple[list[str], list[str], list[int]]:
    wanted = protocol_of(file)
    return list(wanted.methods), list(wanted.evaluation.metrics), list(wanted.evaluation.seeds)


# -- on the command line -----------------------------------------------------------------------------------


def test_a_second_extension_keeps_the_first(file: Path) -> None:
    ran(file, "--method", "+rollout", "--metric", "+gini", "--seed", "+3")
    own = ["deletion(steps=2)", "gini"]
    assert lists(file) == (["raw_attention", "saliency", "rollout"], own, [0, 3])
    done = ran(file, "--method", "+ixg")
    assert "dropped" not in done.out
    assert lists(file) == (["raw_attention", "saliency", "rollout", "ixg"], own, [0, 3])
    ran(file)  # the command that began the run
    assert lists(file) == (["raw_attention", "saliency", "rollout", "ixg"], own, [0, 3])
    setting = Store(file.parent / "run").plans()[-1].configs[0]
    assert set(setting.methods) >= {"rollout", "ixg"}


def test_what_is_removed_stays_removed_and_its_units_stay(file: Path) -> None:
    ran(file, "--method", "+rollout", "--seed", "+1")
    finished = Store(file.parent / "run").finished()
    done = ran(file, "--method=-saliency", "--seed=-0")
    assert "methods dropped: saliency\n" in done.out
    assert "seeds dropped: 0\n" in done.out
    again = ran(file, "--method", "-saliency", "--seed", "-0")  # the same, in the other form, once more
    assert "dropped" not in again.out
    ran(file, "--metric", "+gini")
    assert lists(file) == (["raw_attention", "rollout"], ["deletion(steps=2)", "gini"], [1])
    assert finished <= Store(file.parent / "run").finished()
    ran(file, "--method", "+saliency", "-q")
    assert lists(file)[0] == ["raw_attention", "rollout", "saliency"]


def test_a_plain_list_replaces_and_says_what_it_drops(file: Path) -> None:
    ran(file, "--method", "+rollout")
    done = ran(file, "--method", "rollout", "--method", "+ixg", "--seed", "4", "--metric", "gini")
    assert lists(file) == (["rollout", "ixg"], ["gini"], [4])
    for line in ("methods dropped: raw_attention, saliency", "metrics dropped: deletion(steps=2)", "seeds dropped: 0"):
        assert line in done.out.splitlines()
    fewer = ran(file, "--images", "1")
    assert "dropped" not in fewer.out
    assert "images dropped: 1 instead of 3" in (ran(file, "--images", "3", "-q"), ran(file, "--images", "1"))[1].out


def test_adding_twice_adds_once(file: Path) -> None:
    ran(file, "--method", "+rollout", "--metric", "+gini", "--seed", "+1")
    store = Store(file.parent / "run")
    before = lists(file), len(store.plans()), store.finished()
    ran(
        file,
        "--method",
        "+rollout,rollout",
        "--method",
        "+ rollout",
        "--metric",
        "+gini",
        "--seed",
        "+1",
        "--seed",
        "+01",
    )
    ran(file, "--metric", "+deletion( steps = 2 )", "--method", "+saliency()")  # the same in other forms
    store = Store(file.parent / "run")
    assert (lists(file), len(store.plans()), store.finished()) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--method=-nothing"], "tiny has no method 'nothing' that could be removed"),
        (["--method", "-nothing"], "tiny has no method 'nothing' that could be removed"),
        (["--method=-salienci"], "did you mean saliency?"),
        (["--method=-random"], "tiny has no method 'random' that could be removed"),
        (["--method", "+nothing"], "unknown method 'nothing'"),
        (["--method", "+"], "--method '+' names no method"),
        (["--method", "-"], "--method '-' names no method"),
        (["--method", ""], "the argument after --method is empty"),
        (["--method", "+a", "--method=-a"], "--method both adds and removes a"),
        (["--method=-raw_attention,saliency"], "no method of tiny would be left"),
        (["--metric=-gini"], "tiny has no metric 'gini' that could be removed"),
        (["--metric=-deletion(steps=2)"], "no metric of tiny would be left"),
        (["--seed=-7"], "tiny has no seed '7' that could be removed"),
        (["--seed=-0"], "no seed of tiny would be left"),
        (["--seed", "one"], "--seed one is no whole number from 0 on"),
        (["--seed", "++1"], "--seed +1 is no whole number from 0 on"),
        (["--seed", "1.5"], "--seed 1.5 is no whole number from 0 on"),
        (["--model=-other"], "tiny has no model 'other' that could be removed"),
        (["--model=-world"], "no model of tiny would be left"),
        (["--img-size", "64"], "--img-size is that of another model"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(file: Path, options: list[str], text: str) -> None:
    bench(read(file), file.parent / "run")
    before = (file.parent / "run" / "run.json").read_bytes()
    done = command("bench", "run", file, "--out", file.parent / "run", *QUICK, *options)
    assert done.code == 2
    assert text in done.err
    assert done.err.count("\n") == 1
    assert (file.parent / "run" / "run.json").read_bytes() == before


def test_an_interrupted_extension_is_kept_by_the_next(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(file)

    def stopped(self: Worker, job: Any, read: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "run", stopped)
    done = command("bench", "run", file, "--out", file.parent / "run", "--shard", "1/1", "--method", "+rollout")
    assert done.code == 130
    monkeypatch.undo()
    ran(file, "--method", "+ixg")
    store = Store(file.parent / "run")
    assert lists(file)[0] == ["raw_attention", "saliency", "rollout", "ixg"]
    assert {unit.id for plan in store.plans() for unit in plan.units} == store.finished()


def test_an_extension_does_not_undo_one_that_was_made_meanwhile(tmp_path: Path) -> None:
    out, wanted = tmp_path / "run", tiny(images=2)
    seen: Any = (bench(wanted, out).store.manifest() or {})["wanted"]
    for name in ("saliency", "ixg"):
        changed, _ = apply_changes(wanted, Changes(methods=[f"+{name}"]))
        extended = BenchmarkRun(changed, out, Options(device="cpu"), named=wanted, previous=seen)
        if name == "saliency":
            extended.prepare()
            continue
        with pytest.raises(VitreousError, match="was changed by another command meanwhile"):
            extended.prepare()
    with pytest.raises(VitreousError, match="was changed by another command meanwhile"):
        BenchmarkRun(wanted, out, Options(device="cpu"), previous={}).prepare()  # there was no run when it looked


# -- the protocol that a command names ---------------------------------------------------------------------


def wanted_by(run: Protocol, named: Protocol | None) -> dict[str, Any]:
    outcome = {"protocol": run.to_json(), **({} if named is None else {"named": named.to_json()})}
    return dict(json.loads(json.dumps(outcome)))


def test_a_file_that_was_edited_comes_in_beside_what_the_run_has_changed() -> None:
    began = tiny(methods=("raw_attention", "rollout", "saliency"), metrics=("gini", "deletion(steps=2)"))
    run, _ = apply_changes(began, Changes(methods=["+ixg", "-rollout"], seeds=["+5"], precision="float16"))
    edited = dataclasses.replace(
        began,
        title="Other",
        methods={"raw_attention": "raw_attention", "rollout": "rollout", "gradcam": "gradcam"},
        evaluation=dataclasses.replace(began.evaluation, tie_breaking="raster"),
    )
    merged, outcome = resume_protocol(edited, wanted_by(run, began))
    assert list(merged.methods) == ["raw_attention", "gradcam", "ixg"]
    assert (merged.evaluation.seeds, merged.evaluation.tie_breaking, merged.evaluation.precision) == (
        (0, 5),
        "raster",
        "float16",
    )
    assert merged.title == "Other"
    assert outcome == [
        "tiny has changed since this run was begun",
        "methods dropped: saliency",
        "methods added: gradcam",
    ]
    assert resume_protocol(began, wanted_by(run, began)) == (run, [])


def test_a_row_that_means_something_else_now_is_named() -> None:
    began = tiny(methods={"a": "rollout", "b": "ixg"})
    edited = dataclasses.replace(began, methods={"a": "rollout(start=1)", "b": "ixg"})
    merged, outcome = resume_protocol(edited, wanted_by(began, began))
    assert merged.methods == edited.methods
    assert "methods with another meaning: a" in outcome


def test_another_protocol_in_the_same_folder_is_reported() -> None:
    began = tiny()
    other = dataclasses.replace(tiny(methods=("rollout",)), name="other")
    result, outcome = resume_protocol(other, wanted_by(began, began))
    assert result == other
    assert outcome == ["this was a run of tiny, and is one of other now", "methods dropped: raw_attention"]


# -- lists of their own ------------------------------------------------------------------------------------


def test_a_data_set_with_its_own_metrics_gets_what_is_added_and_no_more() -> None:
    added, _ = apply_changes(two_sets(), Changes(metrics=["+deletion"], methods=["+saliency"]))
    assert (added.data.metrics, added.also[0].metrics) == (("gini", "deletion"), ())
    assert [model.methods for model in added.models] == [(), ("ixg", "saliency")]
    removed, outcome = apply_changes(added, Changes(metrics=["-gini"], methods=["-ixg"]))
    assert (removed.data.metrics, removed.evaluation.metrics) == (("deletion",), ("pointing_game", "deletion"))
    assert removed.models[1].methods == ("saliency",)
    assert outcome == ["methods dropped: ixg", "metrics dropped: gini"]
    with pytest.raises(VitreousError, match="no metric of one would be left"):
        apply_changes(two_sets(), Changes(metrics=["-gini"]))
    with pytest.raises(VitreousError, match="no method of cnn would be left"):
        apply_changes(two_sets(), Changes(methods=["-ixg"]))


def test_models_are_added_removed_and_replaced() -> None:
    wanted = dataclasses.replace(two_sets(), data=dataclasses.replace(two_sets().data, models=("world", "cnn")))

    def labels(*models: str, size: int | None = None) -> list[tuple[str, int | None]]:
        changed, _ = apply_changes(wanted, Changes(models=models, size=size), wanted)
        return [(model.label, model.size) for model in changed.models]

    own: list[tuple[str, int | None]] = [("world", None), ("cnn", None)]
    assert labels("+timm/test_vit", size=64) == [*own, ("timm/test_vit", 64)]
    assert labels("+cnn") == own
    assert labels("-world") == own[1:]
    assert labels("timm/a, b[c]") == [("timm/a, b[c]", None)]
    assert labels("timm/a", "+world-shortcut") == [("timm/a", None), ("world-shortcut", None)]
    assert labels("cnn") == own[1:]
    added, _ = apply_changes(wanted, Changes(models=["+timm/a"]))
    assert added.data.models == ("world", "cnn", "timm/a"), "where the model with the most rows is"
    less, outcome = apply_changes(wanted, Changes(models=["-cnn"]), wanted)
    assert outcome == ["models dropped: cnn"]
    assert apply_changes(less, Changes(models=["+cnn"]), wanted)[0].models == wanted.models
    assert apply_changes(less, Changes(models=["cnn"]), wanted)[0].models == wanted.models[1:]


def test_the_reference_goes_with_its_row() -> None:
    usual = read("quick")
    assert usual.evaluation.reference is not None
    changed, outcome = apply_changes(usual, Changes(methods=[f"-{usual.evaluation.reference}"]))
    assert changed.evaluation.reference is None
    assert f"reference dropped: {usual.evaluation.reference}" in outcome


def test_labels_with_commas_are_one_label() -> None:
    wanted = tiny(methods={"a, b": "rollout", "c [d] 'e'": "ixg", "f": "saliency"})
    assert list(apply_changes(wanted, Changes(methods=["-a, b"]))[0].methods) == ["c [d] 'e'", "f"]
    assert list(apply_changes(wanted, Changes(methods=["c [d] 'e'", "a, b"]))[0].methods) == ["c [d] 'e'", "a, b"]
    assert apply_changes(wanted, Changes(methods=["a, b"]))[0].methods == {"a, b": "rollout"}
