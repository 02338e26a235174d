"""The page of *why* says only what it showed: every sentence against every number, on real answers and on extremes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from families import FAMILIES, _build
from vitreous.decision_report import Why, assemble
from vitreous.evaluation.evidence import Evidence, faithfulness
from vitreous.results import ClassProbability
from vitreous.results.diagnostics import CHECK_VERDICTS as VERDICTS
from vitreous.results.diagnostics import CheckResult
from vitreous.tracing import probabilities
from vitreous.world import World
from zoo import CNNS

HERE = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(not HERE.exists(), reason="the benchmarks are not shipped")


@pytest.fixture(scope="module")
def contradictions() -> Iterator[Callable[..., list[str]]]:
    sys.path.insert(0, str(HERE))
    try:
        import why_pages

        yield why_pages.contradictions
    finally:
        sys.path.remove(str(HERE))
        sys.modules.pop("why_pages", None)


def photo(seed: int = 0, size: tuple[int, int] = (40, 50)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


# -- real answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [None, "generic", "rollout", "random", "saliency"])
def test_scenes_of_the_world(contradictions: Any, method: str | None) -> None:
    model = vt.load("world")
    for image in World(n=2, start=7).images():
        result = vt.why(model, image, method=method)
        assert contradictions(result, model) == []


def test_another_class_than_the_prediction(contradictions: Any) -> None:
    model = vt.load("world")
    (image,) = World(n=1, start=3).images()
    for target in (3, 40):
        result = vt.why(model, image, "ixg", target)
        assert contradictions(result, model) == []
        page = result.page()
        assert page.title == f"What speaks for “{model.label(target)}”?"
        assert page.lead.startswith(f"world says “{result.explanation.prediction.label}” (")
        assert f"“{model.label(target)}” rather than “{result.runner_up[1]}”" in result.html()
        assert "Why not" not in result.html()


@pytest.mark.parametrize("classes", [1, 2])
def test_models_of_two_classes(contradictions: Any, classes: int) -> None:
    model = vt.wrap(_build(num_classes=classes), name="two")
    for target in (0, 1, None):
        assert contradictions(vt.why(model, photo(), "ixg", target), model) == []


def test_a_saturated_model(contradictions: Any) -> None:
    model = FAMILIES["vit"]()
    with torch.no_grad():
        model.head.weight *= 0.001
        model.head.bias.copy_(torch.tensor([40.0, 0, 0, 0, 0]))
    vision_model = vt.wrap(model, name="sure")
    for target in (0, 3):
        result = vt.why(vision_model, photo(), "ixg", target)
        assert contradictions(result, vision_model) == []
        assert "cannot tell where the evidence is" in result.page().lead
        assert "faithful" not in result.html()


@pytest.mark.parametrize("size", [8, 16])
def test_tiny_grids(contradictions: Any, size: int) -> None:
    """One patch, and two by two: nothing to compare with, and no fifth."""
    model = vt.wrap(_build(img_size=size), name="tiny")
    result = vt.why(model, photo(), method="ixg")
    assert contradictions(result, model) == []
    if size == 8:
        assert result.without is None
        assert "the same everywhere" in result.page().lead
        assert "Put to the test" not in result.html()
    else:
        assert "strongest patch of 4" in result.page().lead
        assert "too few patches" in result.page().lead
        assert "fifth of" not in result.html()


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_a_flat_map(contradictions: Any) -> None:
    model = vt.load("world")
    result = vt.why(model, next(iter(World(n=1).images())), method="constant")
    assert contradictions(result, model) == []
    assert (result.without, result.alone) == (None, None)
    assert "Do not rely on this map: it is the same everywhere." in result.html()


def test_a_map_without_a_sign_has_the_legend_of_its_colours(contradictions: Any) -> None:
    """Also where its values are below zero: the sign says nothing, and is not drawn."""
    model = vt.load("world")
    image = next(iter(World(n=1).images()))
    for method in ("legrad", "saliency", "eigencam"):
        result = vt.why(model, image, method=method)
        assert not result.explanation.scale.signed
        e = dataclasses.replace(result.explanation, map=result.explanation.map - result.explanation.map.mean())
        for item in (result, dataclasses.replace(result, explanation=e)):
            assert [text for text in contradictions(item) if "legend" in text or "red and blue" in text] == []


def test_a_convolutional_network(contradictions: Any) -> None:
    model = vt.wrap(CNNS["resnet"]())
    assert contradictions(vt.why(model, photo(), method="gradcam"), model) == []


def test_two_classes_of_one_name_are_told_apart() -> None:
    model = vt.wrap(FAMILIES["vit"](), class_names=["crane"] * 5)
    result = vt.why(model, photo(), "ixg", 2)
    for answer in (result.without, result.alone):
        assert answer is not None
        assert answer.label == ("crane" if answer.target == 2 else f"crane, class {answer.target}")


# -- extremes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simple() -> tuple[vt.VisionModel, Why, torch.Tensor]:
    model = vt.wrap(FAMILIES["vit"](), name="tiny")
    result = vt.why(model, photo(), method="ixg")
    class_probabilities = probabilities(model.logits(model.preprocess.to_tensor(result.explanation.image)[None]))[0]
    return model, result, class_probabilities


def report(e: vt.Explanation, prediction: ClassProbability, probability: float) -> vt.Explanation:
    """The same map of a class with another probability, beside another prediction."""
    return dataclasses.replace(e, prediction=prediction, explained=e.explained._replace(probability=probability))


def sampled(draw: np.random.Generator, places: int) -> Evidence:
    """Any evidence: probabilities at the ends and in the middle, few and many places, classes that change."""
    levels = np.array([0.0, 1e-9, 3e-5, 0.0001, 0.004, 0.02, 0.0995, 0.25, 0.4999, 0.5, 0.501, 0.9, 0.9996, 1.0])
    base = draw.choice(levels, 3 + 2 * places)
    if draw.random() < 0.5:  # a map that beats nearly all
        base[1], base[2] = min(base[1], base[0]), max(base[2], 0.5)
        base[3 : 3 + places] = np.where(draw.random(places) < 0.9, 0.95, base[3 : 3 + places])
        base[3 + places :] = np.where(draw.random(places) < 0.9, 0.001, base[3 + places :])
    classes = draw.integers(0, 5, 2)
    predictions = (int(classes[0]), 0.7), (int(classes[1]), 0.6)
    others = tuple(base[3 : 3 + places].tolist()), tuple(base[3 + places :].tolist())
    return Evidence(*base[:3].tolist(), predictions, *others, (51, 256))


@pytest.mark.parametrize("seed", range(8))
def test_no_evidence_makes_a_page_that_contradicts_itself(
    contradictions: Any, simple: tuple[vt.VisionModel, Why, torch.Tensor], seed: int
) -> None:
    model, result, class_probabilities = simple
    draw, sentences = np.random.default_rng(seed), set()
    for _ in range(40):
        evidence, other = sampled(draw, int(draw.choice([0, 3, 10, 15, 20]))), int(draw.integers(0, 5))
        target = result.explanation.target
        same = other != target or evidence.predictions[1][0] == target
        evidence = dataclasses.replace(evidence, keeps_prediction=same)
        first = faithfulness(evidence, result.explanation.label)[0]
        tests = (first, *result.check_result.tests[1:])
        verdict = max((test.verdict for test in tests if test.verdict != "-"), key=VERDICTS.index, default="weak")
        sentence = "nothing speaks against this map" if verdict == "good" else "take care"
        message = ClassProbability(other, model.label(other), 0.8)
        e = report(result.explanation, message, evidence.now)
        created = assemble(model, e, class_probabilities, None, None, CheckResult(verdict, sentence, tests), "again")
        assert contradictions(created) == [], (evidence, created.page().lead)
        sentences.add(created.page().lead.split(" is ")[-1].split(":")[0])
    assert len(sentences) >= 3


def test_the_five_kinds_of_answers(simple: tuple[vt.VisionModel, Why, torch.Tensor]) -> None:
    """The headlines of the issue, each from its own numbers."""
    model, result, class_probabilities = simple
    target = result.explanation.target
    assert target is not None
    other = (target + 1) % 5

    def lead(now: float, without: float, alone: float, lower: int, higher: int, same: bool = True) -> str:
        others = (1.0,) * lower + (0.0,) * (20 - lower), (0.0,) * higher + (1.0,) * (20 - higher)
        predictions = (other, 0.5), (target if same else other, 0.5)
        evidence = Evidence(now, without, alone, predictions, *others, (51, 256), same)
        message = ClassProbability(target, model.label(target), now)
        e = report(result.explanation, message, now)
        tests = (faithfulness(evidence, e.label)[0], *result.check_result.tests[1:])
        page = assemble(model, e, class_probabilities, None, None, CheckResult("weak", "care", tests), "").page()
        return page.lead.split(f"{e.label}. ")[1].replace(model.label(target), "ski").replace(model.label(other), "alp")

    assert lead(0.43, 0.015, 0.92, 20, 20) == (
        "The map's strongest fifth is needed and enough: without it ski has only 1.5 %, and the model says “alp”; "
        "alone it has 92 %."
    )
    assert lead(0.43, 0.015, 0.92, 15, 20) == (
        "The map's strongest fifth is enough, but not needed: without it ski has only 1.5 %, but 5 of 20 other places "
        "leave no more; alone it has 92 %."
    )
    assert lead(0.43, 0.015, 0.3, 20, 20, same=False) == (
        "The map's strongest fifth is needed, but not enough: without it ski has only 1.5 %, and the model says “alp”; "
        "alone it has 30 %, but the model says “alp”."
    )
    assert lead(0.43, 0.6, 0.1, 2, 12) == (
        "The map's strongest fifth is neither needed nor enough: without it ski rises to 60 %, and the model says "
        "“alp”; alone it has only 10 %."
    )
    assert lead(0.43, 0.3, 0.4, 20, 18) == (
        "The map's strongest fifth is neither needed nor enough: without it ski still has 30 %, and the model says "
        "“alp”; alone it has 40 %, but 2 of 20 other places have no less."
    )
