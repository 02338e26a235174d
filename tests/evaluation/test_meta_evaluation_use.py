"""The trial as people use it: its command, its script, and the verdicts that the package ships."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import vitreous as vt
from commands import run
from vitreous.metrics import verdicts
from vitreous.results.diagnostics import MetaEvaluation, MetricAssessment, Reliability, Step

FEW = ("--scenes", 3, "--seeds", 1, "--baselines", 0, "--device", "cpu")

BARE = """
import sys

for name in ("rich", "typer", "scipy", "matplotlib", "pandas", "transformers"):
    sys.modules[name] = None  # as if it were not there
sys.argv = ["meta_evaluation.py", *sys.argv[1:]]
exec(compile(open("benchmarks/meta_evaluation.py").read(), "meta_evaluation.py", "exec"))
"""


# -- the command ---------------------------------------------------------------------------------------


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("meta-evaluate", "--metric", "average_gain,average_drop", *FEW, "--out", "trial.json")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["metric", "verdict", "errors", "truth", "sees", "seeds", "baselines", "alpha", "why"]
    assert {line.split()[0] for line in lines[1:3]} == {"average_gain", "average_drop"}
    assert lines[-1] == "saved in trial.json"
    assert "meta-evaluation of 2 metrics on 3 scenes: about 60 forwards, about" in done.err
    saved = MetaEvaluation.load("trial.json")
    assert (saved.scenes, saved.plan["seeds"], saved.plan["states"]) == (3, 1, 60)
    again = run("meta-evaluate", "--metric", "average_gain", *FEW, "--out", "trial.json")
    assert (again.code, again.out) == (2, "")
    assert "trial.json is there already" in again.err


def test_json_and_nothing_else() -> None:
    done = run("meta-evaluate", "--metric", "average_gain", *FEW, "--json")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert report["schema"] == "vitreous.meta_evaluate/1"
    assert [row["metric"] for row in report["assessments"]] == ["average_gain"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "nonsense"), "unknown metric 'nonsense'"),
        (("--out", "trial.csv"), "must end in .json"),
        (("--scenes", "1"), "--scenes"),
        (("--model", "timm/test_vit", "--metric", "average_gain"), "timm/test_vit"),
    ],
)
def test_bad_words(words: tuple[str, ...], message: str) -> None:
    done = run("meta-evaluate", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_the_script_needs_few_libraries(root: Path, tmp_path: Path) -> None:
    out, remaining = tmp_path / "trial.json", tmp_path / "verdicts.json"
    few = ["--metrics", "average_gain", "--scenes", "3", "--seeds", "1", "--baselines", "0", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *few, "--out", str(out), "--verdicts", str(remaining)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "average_gain" in done.stdout
    assert MetaEvaluation.load(out).scenes == 3
    report = json.loads(remaining.read_text())
    assert report["metrics"]["average_gain"]["images"] == 3


# -- results -------------------------------------------------------------------------------------------


def row(metric: str, verdict: str = "passes", **numbers: object) -> MetricAssessment:
    return MetricAssessment(metric, "faithfulness", verdict, "so it is", 9, **numbers)  # type: ignore[arg-type]


def test_a_step_says_whether_it_holds() -> None:
    steps = [Step("a", "b", mean, low, upper) for mean, low, upper in ((1, 0.5, 2), (-1, -2, -0.5), (0, -1, 1))]
    assert [step.holds for step in steps] == [True, False, None]
    assert [str(step).split()[1] for step in steps] == [">", "<", "~"]


@pytest.fixture
def script(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("meta_evaluation_script", root / "benchmarks" / "meta_evaluation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_are_joined(script: ModuleType) -> None:
    plan = {"model": "world", "seeds": 2, "seconds": 3.0, "states": 7}
    one = MetaEvaluation((row("insertion"), row("deletion", "blind")), 9, 1, {"oracle": 1.0}, plan)
    two = replace(one, assessments=(row("deletion", "fails"), row("srg")))
    both = script.join([one, two])
    assert [item.metric for item in both.assessments] == ["insertion", "deletion", "srg"]
    assert both["deletion"].verdict == "fails"
    assert both.plan["seconds"] == 6
    with pytest.raises(vt.VitreousError, match="different seeds cannot be joined: 2 and 3"):
        script.join([one, replace(two, plan={**plan, "seeds": 3})])
    with pytest.raises(vt.VitreousError, match="different scenes cannot be joined: 9 and 8"):
        script.join([one, replace(two, scenes=8)])


def test_what_is_printed_of_a_row() -> None:
    seen = row("insertion", error_rate=0.125, truth=0.5, truth_low=0.4, truth_high=0.6, alpha=0.25)
    seen = replace(seen, over_seeds=Reliability(0.875, 0.5), smallest_share=0.011)
    text = str(MetaEvaluation((seen,), 9, 1))
    assert text.splitlines()[1].split() == (
        ["insertion", "passes", "12.5%", "0.50", "[0.40,", "0.60]", "1.1%", "0.88", "-", "0.25", "so", "it", "is"]
    )
    assert "9 scenes (1 more left out, where nothing matters): 1 passes." in text
    assert MetaEvaluation((seen,), 9, 1)._repr_html_().startswith("<table>")


# -- what is shipped -----------------------------------------------------------------------------------


@pytest.fixture
def shipped_verdicts(monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> None:
    plan = {"model": "world", "seeds": 3, "baselines": 2, "versions": {}}
    tried = (row("insertion", "blind", error_rate=0.25), row("srg(steps=4)"), row("infidelity", "not tried"))
    monkeypatch.setattr(verdicts, "shipped", lambda: script.verdicts_of(MetaEvaluation(tried, 9, 0, {}, plan)))


@pytest.mark.usefixtures("shipped_verdicts")
def test_a_verdict_by_its_spec() -> None:
    result = verdicts.verdict("insertion")
    assert result is not None
    assert (result.verdict, result.images, result.seeds, result.model, result.note) == ("blind", 9, 3, "world", "")
    assert (result.error_rate, result.truth) == (0.25, None)
    assert str(result) == "blind: so it is (9 scenes, 3 seeds of world)"
    assert verdicts.verdict("insertion@rise") == verdicts.verdict(vt.get_metric("insertion")) == result
    assert verdicts.verdict(" srg( steps = 4 ) ") == verdicts.verdict("abpc(steps=4)")


@pytest.mark.usefixtures("shipped_verdicts")
def test_other_settings_get_a_note() -> None:
    result = verdicts.verdict("insertion(steps=9)")
    assert result is not None
    assert (result.metric, result.note) == ("insertion", "tried as insertion, not as insertion(steps=9)")
    assert str(result).endswith("; tried as insertion, not as insertion(steps=9)")
    other = verdicts.verdict("srg")
    assert other is not None
    assert other.note == "tried as srg(steps=4), not as srg"


@pytest.mark.usefixtures("shipped_verdicts")
def test_what_no_trial_has_seen_has_no_verdict() -> None:
    assert verdicts.verdict("deletion") is None
    with pytest.raises(vt.VitreousError, match="unknown metric"):
        verdicts.verdict("nonsense")


def test_what_is_shipped_is_sound() -> None:
    report = verdicts.shipped()
    assert report["schema"] == "vitreous.verdicts/1"
    assert report["metrics"]
    for name in report["metrics"]:
        result = verdicts.verdict(name)
        assert result is not None
        assert result.metric == vt.get_metric(name).spec == name
        assert result.verdict in verdicts.VERDICTS
        assert result.why
        assert (result.images > 0) == (result.verdict != "not tried")
