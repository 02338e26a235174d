"""The trial finds out what each metric is worth; metrics with a known verdict are planted among them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vitreous as vt
from planted_metrics import planted
from vitreous.errors import VitreousError
from vitreous.evaluation import meta_evaluation
from vitreous.evaluation.evaluate import named_metrics
from vitreous.evaluation.meta_evaluation import runs_of
from vitreous.evaluation.meta_maps import measure_scenes
from vitreous.evaluation.meta_statistics import CORE, PAIRS
from vitreous.metrics import ImageShape, get_metric

SCENES = 6
PLANTED = ("perfect", "flipped", "downward", "unmoved", "sparse", "steady", "twomodels", "twoclasses", "broken")


@pytest.fixture(scope="module")
def world() -> vt.VisionModel:
    return vt.load("world", device="cpu")


@pytest.fixture(scope="module")
def result(world: vt.VisionModel) -> Iterator[vt.MetaEvaluation]:
    scenes = measure_scenes(world, SCENES)
    maps = scenes.map().numpy()
    by_mask = {truth.mask.tobytes(): one for truth, one in zip(scenes.annotations, maps, strict=True)}
    with planted(by_mask):
        yield vt.meta_evaluate(
            [f"planted_{item}" for item in PLANTED] + ["average_increase"],
            model=world,
            scenes=SCENES,
            baselines=1,
            n_bootstrap=500,
        )


def test_a_metric_that_knows_the_oracle_passes(result: vt.MetaEvaluation) -> None:
    row = result["planted_perfect"]
    assert row.verdict == "passes"
    assert row.error_rate < 0.1
    assert row.truth > 0.95 < row.truth_high
    assert all(step.holds for step in row.steps if step.required)
    assert row.alpha > 0.7
    assert row.scores["oracle"] == pytest.approx(1)
    assert row.images == SCENES == result.scenes


def test_a_flipped_sign_is_caught(result: vt.MetaEvaluation) -> None:
    row, right = result["planted_flipped"], result["planted_perfect"]
    assert row.verdict == "fails"
    assert row.why.startswith("ranks worse oracles above oracle; ranks centre above worse oracles")
    assert row.error_rate == pytest.approx(1 - right.error_rate)
    assert row.truth == pytest.approx(-right.truth)
    assert math.isnan(row.smallest_share)
    assert [step.holds for step in row.steps if step.required] == [False] * 4


def test_a_metric_that_goes_down_is_read_as_it_says(result: vt.MetaEvaluation) -> None:
    row, right = result["planted_downward"], result["planted_perfect"]
    assert row.verdict == "passes"
    assert (row.error_rate, row.truth) == pytest.approx((right.error_rate, right.truth))
    assert row.scores["random 1"] == pytest.approx(1 - right.scores["random 1"])
    assert not row.higher_is_better


def test_a_constant_metric_is_blind(result: vt.MetaEvaluation) -> None:
    row = result["planted_unmoved"]
    assert row.verdict == "blind"
    assert row.error_rate == 0.5
    assert row.truth == 0
    assert row.smallest == 0
    assert math.isnan(row.alpha)
    assert "cannot tell oracle from worse oracles" in row.why


def test_a_metric_that_likes_few_pixels_is_caught(result: vt.MetaEvaluation) -> None:
    """Oracle, worse oracles, centre and random are sparse in this order; only the misplaced oracle tells."""
    row = result["planted_sparse"]
    assert row.verdict == "fails"
    assert row.why == "ranks misplaced above worse oracles"
    assert row.scores["oracle"] == pytest.approx(row.scores["misplaced"])


def test_what_cannot_be_evaluated_is_reported(result: vt.MetaEvaluation) -> None:
    assert result["planted_twomodels"].why == "compares maps of two models; a map of the scene has no second model"
    assert result["planted_twoclasses"].why == "compares maps of two classes; a map of the scene has one"
    assert result["planted_broken"].why == "cannot be run here: ZeroDivisionError: of nothing"
    assert {row.verdict for row in result.assessments if not row.images} == {"not tried"}
    assert str(result).count("not tried") >= 3


def test_maps_are_made_again_from_noisy_scenes(result: vt.MetaEvaluation) -> None:
    """The oracle knows its scene again, noise is drawn anew: a metric of steadiness sees noise, and nothing else."""
    scores = result["planted_steady"].scores
    assert scores["oracle"] == scores["centre"] == scores["blur strong"] == scores["swapped mild"] == 0
    assert scores["shift strong"] == scores["mix 0"] == 0
    assert scores["noise strong"] < scores["noise mild"] < 0
    assert max(scores["random 1"], scores["mix 1"]) < 0
    assert result["planted_steady"].verdict == "fails"


def test_every_verdict_has_its_numbers(result: vt.MetaEvaluation) -> None:
    row = result["average_increase"]
    assert row.over_seeds is not None
    assert row.over_seeds.runs == ("seed 0", "seed 1")
    assert row.over_baselines is not None
    assert row.over_baselines.runs == ("its own", "black")
    assert result["planted_perfect"].over_baselines is None
    assert result["planted_perfect"].over_seeds is not None
    assert result["planted_perfect"].over_seeds.order == pytest.approx(1)
    assert [(step.better, step.worse) for step in row.steps if step.required] == [
        ("oracle", "worse oracles"),
        ("worse oracles", "centre"),
        ("centre", "random"),
        ("worse oracles", "misplaced"),
    ]
    assert len(row.steps) == 4 + 8 + 8
    assert result.plan["states"] > 0


def test_printing_and_files(result: vt.MetaEvaluation, tmp_path: Path) -> None:
    lines = str(result).splitlines()
    verdicts = [line.split()[1] for line in lines[1 : 1 + len(result.assessments)]]
    assert verdicts == sorted(verdicts, key=["fails", "blind", "passes", "not"].index)
    assert result.to_markdown().count("\n") == len(result.assessments) + 2
    again = vt.MetaEvaluation.load(result.save(tmp_path / "trial.json"))
    assert again.to_json() == json.loads(json.dumps(result.to_json()))
    assert str(again) == str(result)
    assert again["planted_flipped"].steps == result["planted_flipped"].steps
    with pytest.raises(VitreousError, match="no metric 'perfect'"):
        result["perfect"]
    with pytest.raises(VitreousError, match="must end in"):
        result.save(tmp_path / "trial.txt")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(VitreousError, match="no meta-evaluation of the schema"):
        vt.MetaEvaluation.load(tmp_path / "other.json")
    (tmp_path / "cut.json").write_text(json.dumps({**result.to_json(), "assessments": [{}]}))
    with pytest.raises(VitreousError, match=r"cut\.json is no meta-evaluation"):
        vt.MetaEvaluation.load(tmp_path / "cut.json")


def test_the_first_seed_is_the_evaluation_of_the_library(world: vt.VisionModel, result: vt.MetaEvaluation) -> None:
    scenes = measure_scenes(world, SCENES)
    table = vt.evaluate(world, scenes.inputs, {"oracle": scenes.map()}, "average_increase", controls=False)
    assert result["average_increase"].scores["oracle"] == pytest.approx(table.mean("oracle", "average_increase"))


# -- the plan ------------------------------------------------------------------------------------------

GEOMETRY = ImageShape((128, 128), (16, 16), 8)


def test_courses() -> None:
    definitions = named_metrics(["insdel", "token_deletion_aopc"], by_spec=True)
    runs = list(runs_of(definitions, GEOMETRY, 3, 2))
    assert [(run.seed, len(run.maps), len(run.metrics)) for run in runs] == [
        (0, 19, 2),
        (1, 14, 2),
        (2, 14, 2),
        (0, 14, 1),
        (0, 14, 1),
    ]
    changed = [run.metrics["insdel"].spec for run in runs[3:]]
    assert changed == [
        f"insdel(insertion_baseline='{name}', deletion_baseline='{name}')".replace("'", "")
        for name in ("black", "mean_channel")
    ]
    own = get_metric("insdel").num_forwards(GEOMETRY) + get_metric("token_deletion_aopc").num_forwards(GEOMETRY)
    assert runs[0].states(GEOMETRY) == 1 + 19 * own


def test_pairs_are_of_neighbours() -> None:
    assert len(PAIRS) == 8 + 8 + 3 + 8
    assert len(CORE) == 14
    assert ("oracle", "noise mild") in PAIRS
    assert ("centre", "random 2") in PAIRS
    assert ("oracle", "random 1") not in PAIRS


def test_all_metrics_are_tried_unless_some_are_named(world: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(metrics: list[str], by_spec: bool) -> None:
        raise VitreousError(" ".join(metrics))

    monkeypatch.setattr(meta_evaluation, "named_metrics", refuse)
    with pytest.raises(VitreousError) as error:
        vt.meta_evaluate(model=world)
    assert str(error.value).split() == [info.name for info in vt.list_metrics()]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"metrics": ["insertion", "insertion"]}, "insertion is named twice"),
        ({"metrics": []}, "give at least one metric"),
        ({"metrics": "nonsense"}, "unknown metric 'nonsense'"),
        ({"scenes": 1}, "scenes=1"),
        ({"seeds": 0}, "seeds=0"),
        ({"baselines": -1}, "baselines=-1"),
        ({"output": "colour", "metrics": "average_drop"}, "output='colour'"),
        ({"model": "worlds", "metrics": "average_drop"}, "worlds"),
    ],
)
def test_bad_words(asked: dict[str, object], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        vt.meta_evaluate(**asked)


def test_another_model_is_refused() -> None:
    from families import FAMILIES

    with pytest.raises(VitreousError, match="needs a model of the world's 48 classes"):
        vt.meta_evaluate("average_drop", model=FAMILIES["vit"]())


def test_numbers_are_numbers(result: vt.MetaEvaluation) -> None:
    report = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert {row["metric"] for row in report["assessments"]} == {row.metric for row in result.assessments}
    assert all(np.isfinite(list(row["scores"].values())).all() for row in report["assessments"])
