"""Runs with several seeds: every image has the mean of its scores over the seeds, before anything else is computed."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_files import METRICS, SETTING, add_plan, create_store, protocol, save_unit, score_unit
from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.collect import RunScores, collect
from vitreous.benchmark.protocol import EvaluationSpec
from vitreous.benchmark.ranking import ranks_per_image
from vitreous.benchmark.report import report
from vitreous.benchmark.results import load_run
from vitreous.benchmark.store import Store
from vitreous.metrics.bootstrap import mean as weighted_mean
from vitreous.metrics.bootstrap import resampled
from vitreous.results import ScoreTable

PICTURES = "abcdefghijkl"
SEEDS = (0, 5, 9)


def value(picture: str, method: str, metric: str, seed: int) -> float:
    """A score that depends on all four; no two cells share a draw."""
    words = [*map(ord, picture + method + metric), seed]
    return float(np.random.default_rng(words).normal(0.1 * len(method), 1.0))


def run_of(
    tmp_path: Path, seeds: Any = SEEDS, lost: Any = (), pictures: str = PICTURES, begun_with: Any = None
) -> Store:
    """A run with these seeds; ``lost`` are (picture, method, seed) without a score."""
    spec = protocol(evaluation=EvaluationSpec(tuple(METRICS), reference="generic", seeds=tuple(begun_with or seeds)))
    wanted = {"protocol": spec.to_json(), "data": None, "images": None, "checkpoint": {}, "sources": []}
    store, units = create_store(tmp_path, wanted), [score_unit(pictures, seed) for seed in seeds]
    add_plan(store, [*units, *(score_unit(pictures, seed) for seed in begun_with or () if seed not in seeds)])
    for unit in units:
        arrays: dict[str, Any] = {}
        for i, method in enumerate(unit.methods):
            arrays[f"flags/{i}/given"] = np.array([int(unit.seed == 5 and method == "ours")] * len(pictures))
            for j, metric in enumerate(unit.metrics):
                scores = [
                    math.nan if (image, method, unit.seed) in lost else value(image, method, metric, unit.seed)
                    for image in pictures
                ]
                arrays[f"parts/{i}/{j}"] = np.array(scores)[:, None]
                arrays[f"curve/{i}/{j}/0/{metric}/x"] = np.array([0.0, 1.0])
                arrays[f"curve/{i}/{j}/0/{metric}/y"] = np.array([[score, score + 1] for score in scores])
        save_unit(store, unit, arrays, {"images": list(unit.images), "unreadable": {}, "seconds": 1.0})
    return store


def found_in(store: Store) -> RunScores:
    (result,) = collect(store)
    return result


def means_over_seeds(method: str, metric: str, seeds: Any = SEEDS) -> list[float]:
    return [statistics.fmean(value(image, method, metric, seed) for seed in seeds) for image in PICTURES]


def test_means_and_intervals_are_of_seed_averages(tmp_path: Path) -> None:
    table = found_in(run_of(tmp_path)).table
    for method in table.methods:
        for metric in table.metrics:
            expected = means_over_seeds(method, metric)
            assert table[method, metric] == pytest.approx(expected)
            assert table.mean(method, metric) == pytest.approx(statistics.fmean(expected))
            image_of_map = resampled([(np.array(expected)[:, None], weighted_mean)], table.n_bootstrap, table.seed)[
                :, 0
            ]
            assert table.interval(method, metric) == pytest.approx(np.quantile(image_of_map, [0.025, 0.975]))
            curve = table.curve(method, metric)
            assert curve.y == pytest.approx(np.array(expected)[:, None] + [0, 1])
    assert table.degenerate["ours"]["constant"] == len(PICTURES), "of one seed, the most"
    assert table.plan["seed"] == list(SEEDS)


def test_tests_and_ranks_are_of_seed_averages(tmp_path: Path) -> None:
    result = found_in(run_of(tmp_path))
    info = ModelResult.of(result, protocol()).statistics
    for metric in METRICS:
        ours, chance = (np.array(means_over_seeds(name, metric)) for name in ("ours", "random"))
        test = info.test("ours", "random", metric)
        assert test is not None
        assert test.difference == pytest.approx((ours - chance).mean())
        signs = np.array(np.meshgrid(*[[1, -1]] * len(PICTURES))).reshape(len(PICTURES), -1)
        under_swaps = np.abs(((ours - chance) @ signs) / len(PICTURES))
        p = (under_swaps >= abs((ours - chance).mean()) - 1e-12).mean()
        assert test.p == pytest.approx(p)
        columns = np.stack([means_over_seeds(name, metric) for name in result.table.methods], axis=1)
        mean_ranks = ranks_per_image(columns, result.table.higher_is_better[metric]).mean(axis=0)
        for name, expected in zip(result.table.methods, mean_ranks, strict=True):
            assert info.ranks[metric].of(name) == pytest.approx(expected)


def deviation(method: str, metric: str, pictures: str = PICTURES, seeds: Any = SEEDS) -> float:
    return statistics.stdev(
        statistics.fmean(value(image, method, metric, seed) for image in pictures) for seed in seeds
    )


def test_the_spread_between_seeds_is_in_every_export(tmp_path: Path) -> None:
    store = run_of(tmp_path)
    expected = deviation("ours", "insertion")
    table = found_in(store).table
    assert table.seed_sd["ours", "insertion"] == pytest.approx(expected)
    written = report(store.path)
    for text in (written.folder / "table.csv").read_text(), load_run(store.path).to_csv(), table.to_csv():
        row = next(
            item
            for item in csv.DictReader(io.StringIO(text))
            if (item["method"], item["metric"]) == ("ours", "insertion")
        )
        assert float(row["seed_sd"]) == pytest.approx(expected)
    for text in (written.folder / "table.md").read_text(), (written.folder / "table.tex").read_text(), str(table):
        assert "between seeds" in text
        assert f"{expected:.4f}" in text
    (info,) = json.loads((written.folder / "statistics.json").read_text())
    (own,) = [item for item in info["seed_sd"] if (item["method"], item["metric"]) == ("ours", "insertion")]
    assert own["sd"] == pytest.approx(expected)
    assert written.page.read_text().count("between seeds</th>") >= len(METRICS)
    assert "between seeds" in load_run(store.path)._repr_html_()
    table.save(tmp_path / "table.json")
    again = ScoreTable.load(tmp_path / "table.json")
    assert again.seed_sd["ours", "insertion"] == pytest.approx(expected)


def test_pandas_has_the_spread_as_a_number(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = found_in(run_of(tmp_path)).table.to_pandas()
    assert frame["seed_sd"].dtype == float


def test_one_seed_has_no_column_of_spread(tmp_path: Path) -> None:
    store = run_of(tmp_path, (5,))
    table = found_in(store).table
    assert table.seed_sd == {}
    written = report(store.path)
    texts = [(written.folder / name).read_text() for name in written.files if not name.endswith("parquet")]
    assert not any("between seeds" in text or "seed_sd" in text for text in [*texts, written.page.read_text()])
    assert table["ours", "deletion"] == pytest.approx(means_over_seeds("ours", "deletion", (5,)))


def test_an_image_that_lacks_a_seed_has_the_mean_of_the_others(tmp_path: Path) -> None:
    lost = [("a", "ours", 0), ("b", "ours", 0), ("b", "ours", 5), *(("c", "ours", seed) for seed in SEEDS)]
    store = run_of(tmp_path, lost=lost)
    result = found_in(store)
    got = result.table["ours", "deletion"]
    assert got[0] == pytest.approx(statistics.fmean(value("a", "ours", "deletion", seed) for seed in (5, 9)))
    assert got[1] == pytest.approx(value("b", "ours", "deletion", 9))
    assert math.isnan(got[2])
    # seeds are compared on the images that have them all
    assert result.table.seed_sd["ours", "deletion"] == pytest.approx(deviation("ours", "deletion", PICTURES[3:]))
    notes = [note for note in ModelResult.of(result, protocol()).statistics.notes if "lack the score" in note]
    assert notes == [
        "2 of 6 cells have images that lack the score of some seed, at most 2 of 12 (ours, insertion): "
        "these count with the mean over the seeds that are there"
    ]
    assert notes[0] in report(store.path).page.read_text()


def test_a_seed_that_has_not_begun_hides_nothing(tmp_path: Path) -> None:
    result = found_in(run_of(tmp_path, (0, 5), begun_with=SEEDS))
    assert result.seeds == SEEDS
    assert result.table["ours", "deletion"] == pytest.approx(means_over_seeds("ours", "deletion", (0, 5)))
    assert result.table.seed_sd["ours", "deletion"] == pytest.approx(deviation("ours", "deletion", seeds=(0, 5)))
    assert result.missing.cells == len(PICTURES) * 3 * 2


def test_a_seed_that_is_not_asked_for_any_more_counts_nowhere(tmp_path: Path) -> None:
    store = run_of(tmp_path, SEEDS)
    add_plan(store, [score_unit(PICTURES, 11)])
    evaluation = EvaluationSpec(tuple(METRICS), seeds=(9, 11))
    Store.create(store.path, {"protocol": protocol(evaluation=evaluation).to_json()})
    result = found_in(store)
    assert result.table["ours", "deletion"] == pytest.approx(means_over_seeds("ours", "deletion", (9,)))
    assert (result.missing.wanted, result.missing.cells) == (2 * 12 * 6, 12 * 6)


def test_a_metric_that_is_no_mean_averages_its_counts(tmp_path: Path) -> None:
    setting = dataclasses.replace(SETTING, metrics={"mean_iou": "mean_iou"})
    evaluation = EvaluationSpec(("mean_iou",), seeds=(0, 1))
    store = create_store(tmp_path, {"protocol": protocol(evaluation=evaluation).to_json()})
    counts = {0: [[1.0, 2.0, 3.0, 4.0], [4.0, 4.0, 1.0, 9.0]], 1: [[2.0, 2.0, 1.0, 8.0], [0.0, 4.0, 3.0, 5.0]]}
    units = [score_unit("ab", seed, setting=setting) for seed in counts]
    add_plan(store, units, setting)
    for unit in units:
        arrays = {f"parts/{i}/0": np.array(counts[unit.seed]) for i in range(3)}
        save_unit(store, unit, arrays, {"images": list(unit.images), "unreadable": {}, "seconds": 1.0})
    table = found_in(store).table
    pooled = (np.array(counts[0]) + np.array(counts[1])).sum(axis=0)
    assert table.mean("ours", "mean_iou") == pytest.approx((pooled[0] / pooled[1] + pooled[2] / pooled[3]) / 2)
    item = [np.array(own).sum(axis=0) for own in counts.values()]
    scores = [(own[0] / own[1] + own[2] / own[3]) / 2 for own in item]
    assert table.seed_sd["ours", "mean_iou"] == pytest.approx(statistics.stdev(scores))


def test_the_explorer_shows_the_spread(tmp_path: Path, browser: Any) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    import vitreous as vt
    from vitreous.web.serve import Server, listen

    several, one = (run_of(tmp_path / name, seeds).path for name, seeds in (("several", SEEDS), ("one", (0,))))
    server = Server(listen("127.0.0.1", 0), "127.0.0.1", {"world": vt.load("world")}, {"several": several, "one": one})
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for name, count in (("several", len(METRICS)), ("one", 0)):
            tab = browser.new_context().new_page()
            tab.goto(f"{server.address}#/run/{name}")
            tab.wait_for_selector(".runtable tbody th")
            heads = tab.locator(".runtable thead th").all_inner_texts()
            assert heads.count("between seeds") == count
            row = next(
                inner_text
                for inner_text in tab.locator(".runtable tbody tr").all_inner_texts()
                if inner_text.startswith("ours")
            )
            expected = f"{deviation('ours', 'insertion'):.4f}"
            assert (expected in row.split()) == (count > 0)
            tab.context.close()
    finally:
        server.stop()
        thread.join(20)
        server.explorer.close()
