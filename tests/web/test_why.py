"""Why, in the explorer: what stands on the library's own page; and a map put to the test, state by state."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from vitreous.web.schemas import encode_array
from vitreous.world import World, pair, render
from web_server import PAIR, SCENE, Client, chances, decoded, opened, world

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    pixels = render(pair(World("test", 1, start=5).batch())).images[0]
    return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())


@pytest.fixture(scope="module")
def found(client: Client) -> dict[str, Any]:
    (told,) = client.tasks({**PAIR, "kind": "why", "method": "quick"})
    assert told["event"] == "result", told
    return told


@pytest.fixture(scope="module")
def expected(picture: Image.Image) -> vt.Why:
    return vt.why(world(), picture)


def test_it_is_the_page_of_why(found: dict[str, Any], expected: Any) -> None:
    page = expected.page()
    for name in ("title", "lead", "tried_text", "trust_text", "settings"):
        assert found[name] == getattr(page, name)
    assert [(each["label"], each["probability"]) for each in found["says"]] == [
        (label, pytest.approx(chance, abs=1e-5)) for label, chance in page.says
    ]
    assert found["trust"] == [dataclasses.asdict(each) for each in page.trust]
    for told, tried in zip(found["tried"], page.tried, strict=True):
        assert (told["words"], told["percent"], told["change"]) == (tried.caption, tried.chance, tried.change)
        assert np.array_equal(opened(told["picture"]), tried.picture)


def test_its_maps_are_those_of_why(found: dict[str, Any], expected: Any) -> None:
    assert np.allclose(decoded(found["map"]), expected.explanation.map, rtol=1e-4, atol=1e-6)
    contrast, owners = found["contrast"], found["owners"]
    assert (contrast["rival"], contrast["index"]) == (expected.rival, expected.contrast.contrast[0])
    assert np.allclose(decoded(contrast["map"]), expected.contrast.map, rtol=1e-4, atol=1e-6)
    assert np.allclose(decoded(owners["distribution"]), expected.owners.extras["distribution"], atol=1e-4)
    assert [owner["label"] for owner in owners["classes"]] == [expected.explanation.label, expected.rival]


def test_a_class_that_has_no_rival_has_no_owners(client: Client) -> None:
    told = client.task("why", method="ixg")
    assert told["owners"] is None
    assert told["contrast"] is not None


def test_a_method_that_knows_no_class_has_no_contrast(client: Client) -> None:
    told = client.task("why", method="rollout")
    assert told["contrast"] is None
    assert not told["class_specific"]


def test_the_check_is_that_of_the_library(client: Client) -> None:
    told = client.task("check", method="ixg")
    scene = next(World("test", 1, start=3).images())
    expected = vt.check(vt.explain(world(), scene, "ixg"), world())
    assert (told["verdict"], told["sentence"]) == (expected.verdict, expected.sentence)
    assert [(each["name"], each["verdict"]) for each in told["tests"]] == [
        (test.name, test.verdict) for test in expected.tests
    ]
    assert all(each["word"] and each["sentence"].endswith(".") for each in told["tests"])


# -- deletion and insertion ------------------------------------------------------------------------------


def without(picture: Image.Image, gone: set[int]) -> Image.Image:
    """Black patches, painted one by one."""
    pixels = np.array(picture)
    for patch in gone:
        row, column = divmod(patch, 16)
        pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
    return Image.fromarray(pixels)


def test_every_point_of_the_curve_is_the_models_answer(client: Client, picture: Image.Image) -> None:
    (explained,) = client.tasks({**PAIR, "kind": "explain", "method": "ixg", "target": 4})
    asked = {**PAIR, "kind": "curve", "target": 4, "map": explained["map"], "fill": "black"}
    (told,) = client.tasks(asked)
    values = decoded(explained["map"]).flatten()
    order = sorted(range(256), key=lambda patch: (-values[patch], patch))
    assert told["removed"] == [step / 16 for step in range(17)]
    for step in (0, 1, 5, 16):
        top = set(order[: 16 * step])
        expected = [float(chances(world(), without(picture, gone))[4]) for gone in (top, set(range(256)) - top)]
        assert (told["deletion"][step], told["insertion"][step]) == pytest.approx(expected, abs=1e-5)
    for name in ("deletion", "insertion"):
        curve = told[name]
        area = sum((first + second) / 2 / 16 for first, second in pairwise(curve))
        assert told["auc"][name] == pytest.approx(area)
        assert told["random"][name][0] == pytest.approx(curve[0], abs=1e-6)
        assert told["random"][name][-1] == pytest.approx(curve[-1], abs=1e-6)
    assert len(told["strip"]) == 6
    for each in told["strip"]:
        shown = opened(each["picture"])
        assert float(chances(world(), shown)[4]) == pytest.approx(each["probability"], abs=1e-5)
        assert np.array_equal(shown, without(picture, set(order[: round(256 * each["fraction"])])))


def test_the_random_curves_are_means_over_orders_and_their_reverses(client: Client) -> None:
    """The same for every map; the steps from two orders of a seed, written out."""
    picture = next(World("test", 1, start=3).images())
    target = client.fine("/api/predict", SCENE)["top"][0]["index"]
    first, second = (
        client.task("curve", map=client.task("explain", method=name)["map"], fill="black") for name in ("ixg", "centre")
    )
    assert first["random"] == second["random"]
    assert first["deletion"] != second["deletion"]
    assert first["target"] == target
    draw, step, told = np.random.default_rng(0), 5, []
    for order in (draw.permutation(256), draw.permutation(256)):
        for each in (order, order[::-1]):
            told.append(float(chances(world(), without(picture, set(each[: 16 * step].tolist())))[target]))
    assert first["random"]["deletion"][step] == pytest.approx(np.mean(told), abs=1e-5)
    assert first["random"]["insertion"][16 - step] == pytest.approx(np.mean(told), abs=1e-5)


def test_a_map_of_pixels_is_summed_into_patches(client: Client) -> None:
    fine = client.task("explain", method="saliency")["map"]
    coarse = decoded(fine).reshape(16, 8, 16, 8).sum(axis=(1, 3))
    assert client.task("curve", map=fine)["deletion"] == client.task("curve", map=encode_array(coarse))["deletion"]


def test_why_is_about_the_class_itself(client: Client) -> None:
    """A rival that is held against it changes no number: the probabilities on the page are those among all classes."""
    (plain,) = client.tasks({**PAIR, "kind": "why", "method": "ixg", "target": 4})
    (contrast,) = client.tasks({**PAIR, "kind": "why", "method": "ixg", "target": 4, "contrast": 9})
    for name in ("title", "lead", "trust", "tried", "criterion"):
        assert plain[name] == contrast[name]
    assert (plain["title"].startswith("Why “")) == (plain["says"][0]["index"] == 4)
    assert [bool(each["note"]) for each in plain["tried"]] == [False, True, True]
