"""A run over HTTP: its numbers are those of the report, its filters those of a slow loop, its maps those on disk."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from vitreous.benchmark.report import Report, report
from web_runs import (
    ALL,
    CLASSES,
    METHODS,
    METRICS,
    Client,
    confidence,
    done,
    finished_run,
    map_of,
    planned,
    predicted,
    right,
    score,
    served,
)

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


TRUE = {f"scene-{place:06d}": label for place, label in enumerate(vt.world.World("test", 12).labels)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("explorer") / "run")


@pytest.fixture(scope="module")
def written(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report(run, tmp_path_factory.mktemp("explorer") / "report")


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[Client]:
    with served({"mine": run}) as answer:
        yield answer


def pictures(client: Client, part: int = 0) -> list[str]:
    """Every picture of a part, as a metric without gaps lists them."""
    answer = client.fine("/mine/scores", part=part, method="generic", metric="gini")
    assert answer["total"] == len(answer["pictures"])
    return list(answer["pictures"])


def test_the_table_has_the_numbers_of_the_report(client: Client, written: Report) -> None:
    lines = list(csv.DictReader(io.StringIO((written.folder / "table.csv").read_text())))
    answer = client.fine("/mine")
    assert (answer["title"], answer["lead"], answer["state"]) == (
        "A run & its <script>alert(1)</script>",
        written.lead,
        "",
    )
    message = {
        (part["data"], part["model"], method["name"], metric["name"]): cell
        for part in answer["parts"]
        for method, row in zip(part["methods"], part["cells"], strict=True)
        for metric, cell in zip(part["metrics"], row, strict=True)
    }
    assert len(lines) == len(message) == len(ALL) * (len(METRICS) + 1)
    for line in lines:
        cell = message[line["data"], line["model"], line["method"], line["metric"]]
        assert [repr(cell[name]) for name in ("mean", "lower", "upper", "images")] == [
            line[name] for name in ("mean", "low", "high", "images")
        ]
        assert ("" if cell["paper"] is None else repr(cell["paper"])) == line["paper"]


def test_marks_and_flags_are_those_of_the_report(client: Client, written: Report) -> None:
    message = json.loads((written.folder / "statistics.json").read_text())
    for part, own in zip(client.fine("/mine")["parts"], message, strict=True):
        names = [entry["name"] for entry in part["methods"]]
        for column, metric in enumerate(entry["name"] for entry in part["metrics"]):
            tests = {
                entry["one"]: entry
                for entry in own["tests"]
                if entry["other"] == "random" and entry["metric"] == metric
            }
            for row, name in enumerate(names):
                cell, test = part["cells"][row][column], tests.get(name)
                expected = ("", None) if test is None else (test["word"], test["corrected"])
                assert (cell["word"], cell["p"]) == expected
                letters = [chr(97 + at) for at, group in enumerate(own["ranks"][metric]["groups"]) if name in group]
                assert cell["letters"] == "".join(letters)
                marks = [
                    entry["text"] for entry in own["shared"] if (entry["method"], entry["metric"]) == (name, metric)
                ]
                assert cell["shared"] == (marks[0] if marks else "")
        controls = ("random", "constant", "centre")
        flags = [entry for entry in (*own["shared"], *own["flags"]) if entry["method"] not in controls]
        assert part["flags"] == flags
    assert any(cell["shared"] for row in client.fine("/mine")["parts"][0]["cells"] for cell in row)  # tis drops tokens
    assert client.fine("/mine")["parts"][0]["methods"][ALL.index("constant")]["degenerate"] == "12 constant"


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"correct": "yes"},
        {"correct": "no"},
        {"low": 0.5},
        {"high": 0.6, "correct": "yes"},
        {"predicted": 2},
        {"predicted": CLASSES + 1},
        {"true": TRUE["scene-000004"]},
        {"name": "0000", "low": 0.4, "high": 0.9},
        {"name": "SCENE-000003"},
    ],
)
@pytest.mark.parametrize("order", ["worst", "best"])
@pytest.mark.parametrize(("method", "metric"), [("tis", METRICS[0]), ("generic", "gini")])
def test_pictures_are_chosen_and_ordered(
    client: Client, wanted: dict[str, Any], order: str, method: str, metric: str
) -> None:
    """By a loop over all of them; deletion is better when it is lower, gini when it is higher."""
    names = dict(
        zip(pictures(client), client.fine("/mine/scores", method="generic", metric="gini")["names"], strict=True)
    )
    selected = []
    for picture in names:
        value = score(picture, method, metric)
        passes = not math.isnan(value)
        passes &= wanted.get("low", 0) <= confidence(picture) <= wanted.get("high", 1)
        passes &= "correct" not in wanted or (wanted["correct"] == "yes") == right(picture)
        passes &= "predicted" not in wanted or predicted(picture) == wanted["predicted"]
        passes &= "true" not in wanted or TRUE[names[picture]] == wanted["true"]
        passes &= wanted.get("name", "").lower() in names[picture].lower()
        if passes:
            selected.append((value, picture))
    up = (metric == "gini") == (order == "best")
    selected.sort(key=lambda entry: -entry[0] if up else entry[0])
    answer = client.fine("/mine/cell", method=method, metric=metric, order=order, **wanted)
    assert [(entry["score"], entry["picture"]) for entry in answer["images"]] == selected
    assert (answer["total"], answer["of"]) == (len(selected), 12)
    assert answer["without"] == sum(math.isnan(score(name, method, metric)) for name in names)
    mean = sum(value for value, _ in selected) / len(selected) if selected else None
    assert answer["mean"] == (None if mean is None else pytest.approx(mean))


def test_pages_make_up_the_whole(client: Client) -> None:
    asked: dict[str, Any] = {"method": "saliency", "metric": METRICS[0]}
    every = [entry["picture"] for entry in client.fine("/mine/cell", **asked)["images"]]
    parts = [client.fine("/mine/cell", **asked, size=5, page=page) for page in range(4)]
    assert [entry["picture"] for part in parts for entry in part["images"]] == every
    assert [len(part["images"]) for part in parts] == [5, 5, 2, 0]
    assert {part["pages"] for part in parts} == {3}


def test_what_is_said_about_a_picture(client: Client) -> None:
    for entry in client.fine("/mine/cell", method="generic", metric="gini")["images"]:
        picture = entry["picture"]
        assert entry["confidence"] == confidence(picture)
        assert entry["predicted"]["index"] == predicted(picture)
        assert entry["true_confidence"] == (confidence(picture) if right(picture) else confidence(picture) / 10)
        assert entry["true"]["index"] == TRUE[entry["name"]]  # a scene says which creature it shows
        assert entry["correct"] == right(picture)


def decoded(array: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(array["data"]), "<f4").reshape(array["shape"])


def test_maps_are_those_that_were_judged(client: Client) -> None:
    for method in ("saliency", "generic"):
        for fine in client.fine("/mine/cell", method=method, metric="gini", size=3)["images"]:
            assert np.array_equal(decoded(fine["map"]), map_of(fine["picture"], method))
    picture = pictures(client)[5]
    answer = client.fine("/mine/image", picture=picture, method="generic", metric=METRICS[0])
    assert [entry["name"] for entry in answer["methods"]] == list(ALL)
    for fine in answer["methods"]:
        assert np.array_equal(decoded(fine["map"]), map_of(picture, fine["name"]))
        for metric in METRICS:
            expected = score(picture, fine["name"], metric)
            assert fine["scores"][metric] == (None if math.isnan(expected) else expected)
    (curve,) = answer["curves"]
    assert curve["y"] == pytest.approx(np.linspace(1, score(picture, "generic", METRICS[0]), 5).tolist(), rel=1e-6)
    ends = [score(image, "generic", METRICS[0]) for image in pictures(client)]
    assert curve["mean"][-1] == pytest.approx(sum(ends) / len(ends), rel=1e-6)


def test_neighbours_are_those_of_the_order(client: Client) -> None:
    asked: dict[str, Any] = {"method": "generic", "metric": "gini", "order": "best", "low": 0.5}
    every = [entry["picture"] for entry in client.fine("/mine/cell", **asked)["images"]]
    for place, picture in enumerate(every):
        answer = client.fine("/mine/image", picture=picture, **asked)
        assert (answer["index"], answer["total"]) == (place, len(every))
        assert answer["previous"] == (every[place - 1] if place else None)
        assert answer["next"] == (every[place + 1] if place + 1 < len(every) else None)
    other = next(image for image in pictures(client) if image not in every)
    assert client.fine("/mine/image", picture=other, **asked)["index"] is None


def test_scores_for_a_scatter(client: Client) -> None:
    asked = {"method": ["tis", "generic"], "metric": ["gini", METRICS[0]], "high": 0.9}
    answer = client.fine("/mine/scores", **asked)
    there = [
        image for image in pictures(client) if confidence(image) <= 0.9 and not math.isnan(score(image, "tis", "gini"))
    ]
    assert answer["pictures"] == there
    one, other = answer["columns"]
    assert one["scores"] == [score(entry, "tis", "gini") for entry in there]
    assert other["scores"] == [score(entry, "generic", METRICS[0]) for entry in there]
    assert answer["confidence"] == [confidence(entry) for entry in there]
    fewer = client.fine("/mine/scores", method="generic", metric="gini", most=4)
    assert (len(fewer["pictures"]), fewer["total"]) == (4, 12)
    assert fewer["columns"][0]["mean"] == pytest.approx(
        sum(score(image, "generic", "gini") for image in pictures(client)) / 12
    )


def test_pictures_are_those_that_the_model_sees(client: Client) -> None:
    picture = pictures(client)[3]
    status, content, kind = client.raw(f"/api/runs/mine/picture?picture={picture}")
    assert (status, kind) == (200, "image/png")
    scene = next(vt.world.World("test", 4).batches())[1].images[3]
    expected = (scene * 255).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), expected)
    status, photo, _ = client.raw(f"/api/runs/mine/photo?picture={picture}")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(photo))), expected)


def test_parts_do_not_mix(client: Client) -> None:
    first, second = set(pictures(client)), set(pictures(client, 1))
    assert (len(first), len(second), len(first & second)) == (12, 6, 0)
    assert client.get("/mine/cell", part=1, method="generic", metric=METRICS[0])[0] == 404
    assert client.get("/mine/image", part=1, picture=next(iter(first)))[0] == 404


def test_a_loaded_model_is_known_by_its_weights(run: Path) -> None:
    model = vt.load("world")
    with served({"mine": run}, models={"my world": model}) as client:
        answer = client.fine("/mine")["parts"][0]
        assert answer["loaded"] == "my world"
        assert {entry["label"] for entry in answer["classes"]} <= {model.label(n) for n in range(model.num_classes)}
    with served({"mine": run}, models={"other": vt.load("world-shortcut")}) as client:
        assert client.fine("/mine")["parts"][0]["loaded"] is None


def test_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First nothing is there, then some of it, then all; each time it says so."""
    monkeypatch.setattr("vitreous.web.run_view._RESTS", 0.0)
    monkeypatch.setattr("vitreous.web.run_view._SHARE", 0.0)
    store = planned(tmp_path / "run")
    units = [unit for plan in store.plans() for unit in plan.units]
    with served({"run": store.path}) as client:
        answer = client.fine("/run")
        assert "Unfinished: 294 of 294 cells (100 %)" in answer["state"]
        assert [part["cells"] for part in answer["parts"]] == [[], []]
        first = next(unit for unit in units if unit.is_scoring and len(unit.metrics) == len(METRICS))
        done(store, first)
        answer = client.fine("/run")
        left = 294 - len(first.images) * len(first.methods) * len(first.metrics)
        assert f"Unfinished: {left} of 294" in answer["state"]
        assert answer["parts"][0]["images"] == len(first.images)
        (visible, *_) = client.fine("/run/cell", method="generic", metric="gini")["images"]
        assert visible["map"] is None  # judged maps may lie in a unit that is lost
        assert visible["predicted"] is None
        for unit in units:
            if unit is not first:
                done(store, unit)
        assert client.fine("/run")["state"] == ""
        assert client.fine("/run/cell", method="generic", metric="gini")["images"][0]["map"] is not None


def test_names_stay_as_they_are(client: Client) -> None:
    answer = client.fine("/mine/cell", method="<i>mine</i>", metric="gini")
    assert answer["total"] == 12
    assert client.fine("/mine")["parts"][0]["methods"][0]["spec"] == METHODS["<i>mine</i>"]


def test_what_is_left_out_and_what_it_took(tmp_path: Path) -> None:
    store = planned(tmp_path / "run")
    units = [unit for plan in store.plans() for unit in plan.units]
    first, *_ = (unit for unit in units if not unit.is_scoring)
    names = {digest: name for plan in store.plans() for digest, name in plan.names.items()}
    lost, doubted = first.images[:2]
    costs = [{"own": 1.0 + place, "shared": 0.5, "maps": 4} for place in range(len(first.methods))]
    for unit in units:
        words = {"unreadable": {lost: "cut short"}, "uncertain": {doubted: "only 0.02"}, "costs": costs}
        done(store, unit, **(words if unit is first else {}))
    with served({"run": store.path}) as client:
        part, other = client.fine("/run")["parts"]
    assert part["left_out"] == [{"name": names[lost], "why": "cut short"}, {"name": names[doubted], "why": "only 0.02"}]
    assert (part["left_out_count"], other["left_out_count"]) == (2, 0)
    seconds = {entry["name"]: entry["seconds"] for entry in part["methods"]}
    assert seconds == {name: (1.5 + place) / 4 for place, name in enumerate(first.methods)}
    assert {entry["name"]: entry["passes"] for entry in part["methods"]}["generic"] == sum(
        vt.get_method("generic").cost
    )
