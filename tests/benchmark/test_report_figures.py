"""The figures and the layout that a protocol asks for, on the page of its report."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_files import METRICS, SETTING, create_run, create_store, protocol, save_scores, score, score_unit
from vitreous.benchmark import report_images
from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.collect import collect
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol, ReportLayout, read, shipped
from vitreous.benchmark.report import report
from vitreous.benchmark.report_images import draw_figures
from vitreous.benchmark.store import Store
from vitreous.benchmark.units import RecordedPlan
from vitreous.metrics import get_metric
from vitreous.results.table_plots import sweeps

pytest.importorskip("matplotlib")


def finding(tmp_path: Path, spec: Protocol, pictures: str = "abcd", **more: Any) -> ModelResult:
    (result,) = collect(Store.open(create_run(tmp_path, spec, pictures, **more)))
    return ModelResult.of(result, spec)


def printed(html: str) -> list[str]:
    return re.findall(r'<img class="plot" src="data:image/svg[^"]*" alt="([^"]*)">', html)


@pytest.mark.parametrize(
    ("asked", "expected", "info"),
    [
        ((), ["curves of insertion", "curves of deletion"], []),
        (("bars",), ["bars of insertion", "bars of deletion"], []),
        (("matrix", "curves"), [f"{k} of {m}" for k in ("matrix", "curves") for m in METRICS], []),
        (("bins",), [], ["No bins: 40 pictures are needed, and there are 4."]),
        (("sweep",), [], ["No sweep: no two methods differ in one number only"]),
        (("bars", "radar"), ["bars of insertion", "bars of deletion"], ["No radar: a radar needs at least three"]),
    ],
    ids=lambda item: "+".join(item) if isinstance(item, tuple) else None,
)
def test_what_is_asked_for_is_drawn_or_named(tmp_path: Path, asked: Any, expected: list[str], info: list[str]) -> None:
    figures = draw_figures(finding(tmp_path, protocol(layout=ReportLayout(figures=asked))))
    assert [drawing.words for drawing in figures.drawings] == expected
    for words in info:
        assert any(words in reason for reason in figures.reasons)
    assert len(figures.reasons) == len(info)


def test_difficulty_bins_of_enough_pictures(tmp_path: Path) -> None:
    """Bins of as many pictures each, by the probability of the class that is explained."""
    many = "".join(chr(0x4E00 + at) for at in range(65))
    result = finding(tmp_path, protocol(layout=ReportLayout(figures=("bins",))), many)
    assert report_images._bins(result) == {"count": 3, "by": "mass", "confidence": "pred"}
    figures = draw_figures(result)
    assert [drawing.words for drawing in figures.drawings] == ["bins of insertion", "bins of deletion"]
    assert "Every bin has as many pictures, at least 20." in figures.text
    for item in result.table.bins("ours", "insertion", 3, "mass"):
        own = [ord(p) for p in many if item.low <= ord(p) % 16 / 100 <= item.high]
        assert item.count in (21, 22)
        assert min(score(chr(p), "ours", "insertion") for p in own) <= item.mean
    config = result.scores.config
    labelled = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, target="label"))
    true = dataclasses.replace(result.scores, config=labelled)
    assert report_images._bins(dataclasses.replace(result, scores=true))["confidence"] == "pred", "no label is known"
    table = dataclasses.replace(result.table, confidence={**result.table.confidence, "label": np.ones(65)})
    true = dataclasses.replace(true, tables=(table,))
    assert report_images._bins(dataclasses.replace(result, scores=true))["confidence"] == "label"


def test_sweeps_go_by_specs_whatever_the_rows_are_called(tmp_path: Path) -> None:
    rows = {"late": "skipplus(decompx, skip=0.75)", "early": "skipplus(decompx, skip=0.25)", "g": "generic"}
    setting = dataclasses.replace(SETTING, methods=rows, method_digests=dict.fromkeys(rows, "m"))
    spec = protocol(rows, layout=ReportLayout(figures=("sweep",)), evaluation=EvaluationSpec(tuple(METRICS)))
    result = finding(tmp_path, spec, setting=setting)
    assert report_images._sweeps(result) == [
        (["early", "late"], {"x": [0.25, 0.75], "x_label": "skip", "name": "skipplus(decompx, skip=…)"})
    ]
    words = [drawing.words for drawing in draw_figures(result).drawings]
    assert words == ["sweep of insertion", "sweep of deletion"]
    assert printed(report(tmp_path / "run").page.read_text()) == words


@pytest.mark.parametrize("name", shipped())
def test_what_a_shipped_protocol_asks_for_could_be_drawn(name: str) -> None:
    spec = read(name)
    for kind in spec.layout.figures:
        if kind == "sweep":
            assert sweeps(list(spec.methods.values()))
        if kind == "radar":
            assert sum(get_metric(metric).higher_is_better for metric in spec.evaluation.metrics) >= 3
        assert kind in ("curves", "bins", "bars", "sweep", "histogram", "matrix", "radar")


# -- the whole table -----------------------------------------------------------------------------------------------


def heads(html: str) -> list[str]:
    result = re.findall(r"<th scope=col[^>]*>(.*?)</th>", html)
    return [re.sub(r"(<[^>]*>)+", "|", item).strip("|") for item in result]


def firsts(html: str) -> list[str]:
    return re.findall(r"<th scope=row[^>]*><div>(.*?)</div></th>", html)


def several(tmp_path: Path, **layout: Any) -> tuple[str, list[ModelResult]]:
    """Two models on two data sets, everything finished; the cells of each of the four are 0.25 above the last."""
    models = tuple(ModelSpec(label, "world") for label in ("net", "other"))
    sets = [DataSpec("folder", label=label, path="nowhere") for label in ("one", "two")]
    spec = protocol(models=models, data=sets[0], also=(sets[1],), layout=ReportLayout(**layout))
    options = {"protocol": spec.to_json(), "data": None, "images": None, "checkpoint": {}, "sources": []}
    store, settings = create_store(tmp_path, options), []
    for label in ("net", "other"):
        for data in ("one", "two"):
            model, print_ = {"label": label, "name": "world"}, label[0] * 32
            created = dataclasses.replace(SETTING, label=label, data=data, model=model, fingerprint=print_)
            settings.append(created)
    units = [
        score_unit("abcd" if at % 2 else "efgh", setting=setting, number=at) for at, setting in enumerate(settings)
    ]
    store.add_plan(RecordedPlan(1, tuple(settings), tuple(units), "wanted", {item * 8: item for item in "abcdefgh"}))
    for at, unit in enumerate(units):
        save_scores(store, unit, shift=0.25 * at)
    result = [ModelResult.of(item, spec) for item in collect(store)]
    page = report(store.path).page.read_text()
    return page[page.index('id="overview"') : page.index('id="m1"')], result


def test_the_whole_table_stands_as_the_protocol_lays_it_out(tmp_path: Path) -> None:
    html, result = several(tmp_path, rows="models", columns=("data", "methods", "metrics"))
    assert heads(html)[:3] == ["model", "one|generic|insertion ↑", "one|generic|deletion ↓"]
    assert firsts(html) == ["net", "other"]
    values = re.findall(r'<td class="n" data-value="([^"]*)">', html)
    tables = {(item.scores.label, item.scores.data): item.table for item in result}
    expected = [
        tables[model, data].mean(name, metric)
        for model in ("net", "other")
        for data in ("one", "two")
        for name in ("generic", "ours", "random")
        for metric in METRICS
    ]
    assert [float(value) for value in values] == pytest.approx(expected)
    assert html.count("<b>") == 2 * 2 * 2, "the best method of each model, data set and metric"


def test_an_axis_that_the_layout_forgets_is_a_column(tmp_path: Path) -> None:
    """Rows of methods and columns of metrics do not tell two models on two sets apart: these come first."""
    html, _ = several(tmp_path, rows="methods", columns=("metrics",))
    assert heads(html) == [
        "method",
        *(
            f"{data}|{model}|{name}"
            for data in ("one", "two")
            for model in ("net", "other")
            for name in ("insertion ↑", "deletion ↓")
        ),
    ]
    assert firsts(html) == ["generic", "ours", "random"]
