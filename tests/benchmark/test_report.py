"""From tables to the files of a report and to the reproduction; the stores are written by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from run_files import (
    METHODS,
    METRICS,
    SETTING,
    add_plan,
    create_run,
    create_store,
    protocol,
    save_scores,
    score,
    score_unit,
)
from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.changes import commands
from vitreous.benchmark.collect import collect
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol, Published, read, replace_model
from vitreous.benchmark.report import report
from vitreous.benchmark.reproduction import ReproducedCell, Reproduction
from vitreous.benchmark.store import Store
from vitreous.benchmark.units import RecordedPlan
from vitreous.cli.benchmark import report as report_command
from vitreous.errors import VitreousError
from vitreous.html import render


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_the_protocol_says_which_rows_and_columns_there_are(tmp_path: Path) -> None:
    spec = protocol({"ours": "rollout"}, evaluation=EvaluationSpec(("deletion",)))
    (result,) = collect(Store.open(create_run(tmp_path, spec)))
    assert result.table.methods == ("ours", "random")
    assert result.table.metrics == ("deletion",)
    assert result.missing.cells == 0


def test_the_files_of_a_report(tmp_path: Path) -> None:
    run = create_run(tmp_path, protocol())
    written = report(run)
    assert written.folder == run / "report"
    assert {path.name for path in written.folder.iterdir()} == {*written.files, "manifest.json"}
    scores = rows(written.folder / "scores.csv")
    assert len(scores) == 8 * 3 * 2
    messages = {(row["image"], row["method"], row["metric"]): float(row["score"]) for row in scores}
    assert messages["picture c", "ours", "deletion"] == score("c", "ours", "deletion")
    means = {(row["method"], row["metric"]): row for row in rows(written.folder / "table.csv")}
    expected = sum(score(item, "ours", "insertion") for item in "abcdefgh") / 8
    assert float(means["ours", "insertion"]["mean"]) == pytest.approx(expected)
    assert means["ours", "insertion"]["images"] == "8"
    assert f"{expected:.4f}" in (written.folder / "table.md").read_text()
    assert f"{expected:.4f}" in (written.folder / "table.tex").read_text()
    page = written.page.read_text()
    assert "A title with &lt;b&gt;" in page
    assert f"{expected:.3f}" in page
    assert "Not shown:" in page  # the folder of pictures is not there
    assert any("no pictures in the report" in note for note in written.notes)
    assert written.state == ""
    assert report(run).files == written.files  # ours: replaced


def test_parquet_holds_the_same_scores(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    written = report(create_run(tmp_path, protocol()))
    stored = parquet.read_table(written.folder / "scores.parquet").to_pylist()
    read_back = [
        {**row, "seed": int(row["seed"]), "score": float(row["score"])} for row in rows(written.folder / "scores.csv")
    ]
    assert stored == read_back


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    written = report(create_run(tmp_path, protocol()))
    assert "scores.parquet" not in written.files
    assert any("pyarrow is not installed" in note for note in written.notes)
    assert "Not drawn: figures need matplotlib" in written.page.read_text()


def test_what_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    run = create_run(tmp_path, protocol())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(VitreousError, match=r"letter\.txt"):
        report(run, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_an_unfinished_run_says_how_much_is_missing(tmp_path: Path) -> None:
    run = create_run(tmp_path, protocol())
    add_plan(Store(run), [score_unit("ijklmnop")])
    written = report(run)
    assert "48 of 96 cells (50 %) are missing" in written.state
    assert "48 of 96 cells (50 %)" in written.page.read_text()


def test_nothing_finished_is_a_page_too(tmp_path: Path) -> None:
    run = create_run(tmp_path, protocol())
    for file in (run / "units").iterdir():
        file.unlink()
    written = report(run)
    assert "nothing is finished yet" in written.page.read_text()
    assert rows(written.folder / "scores.csv") == []


def test_the_commands_say_what_was_changed() -> None:
    usual = read("quick")
    more = dataclasses.replace(usual, methods={**usual.methods, "rollout": "rollout"})
    less = dataclasses.replace(usual, evaluation=dataclasses.replace(usual.evaluation, metrics=("gini",), seeds=(3, 4)))
    default, again = commands(usual, {"images": None}, "a folder", 1, "protocol.json")
    assert default == "vitreous bench run quick --out 'a folder'"
    assert again == "vitreous bench report 'a folder'"
    assert commands(more, {"images": 18}, "x", 1, "protocol.json")[0].endswith("--out x --method +rollout --images 18")
    assert commands(less, {"checkpoint": {"world": "w.pt"}}, "x", 2, "")[0].endswith(
        "--metric gini --seed 3 --seed 4 --checkpoint world=w.pt --threads 2"
    )
    mine = dataclasses.replace(usual, models=(ModelSpec("timm/a", "timm/a"),))
    assert "--model timm/a" in commands(mine, {"data": {"one": "p", "two": "q"}}, "x", 1, "protocol.json")[0]
    assert "--data one=p --data two=q" in commands(mine, {"data": {"one": "p", "two": "q"}}, "x", 1, "protocol.json")[0]
    assert (
        commands(protocol(), {"data": "p"}, "x", 1, "protocol.json")[0]
        == "vitreous bench run protocol.json --out x --data p"
    )
    assert (
        commands(protocol(), {"data": {"": "p"}}, "x", 1, "protocol.json")[0]
        == "vitreous bench run protocol.json --out x --data p"
    )
    half = dataclasses.replace(usual, evaluation=dataclasses.replace(usual.evaluation, precision="float16"))
    assert commands(half, {}, "x", 1, "protocol.json")[0].endswith("--out x --precision float16")
    sized = commands(replace_model(usual, "timm/a", 224), {}, "x", 1, "protocol.json")[0]
    assert "--model timm/a --img-size 224" in sized


def test_several_models_stand_side_by_side(tmp_path: Path) -> None:
    other = dataclasses.replace(SETTING, label="other", model={"label": "other", "name": "world"}, fingerprint="0" * 32)
    third = dataclasses.replace(SETTING, label="third", model={"label": "third", "name": "world"}, fingerprint="1" * 32)
    models = tuple(ModelSpec(label, "world") for label in ("other", "net", "third"))
    options = {
        "protocol": protocol(models=models).to_json(),
        "data": None,
        "images": None,
        "checkpoint": {},
        "sources": [],
    }
    store, settings = create_store(tmp_path, options), [SETTING, other, third]
    units = [score_unit("abcd", setting=setting, number=at) for at, setting in enumerate(settings)]
    names = {item * 8: item for item in "abcd"}
    store.add_plan(RecordedPlan(1, tuple(settings), tuple(units), "wanted", names))
    save_scores(store, units[0])
    save_scores(store, units[1], shift=0.25)
    result = collect(store)
    assert [item.label for item in result] == ["other", "net", "third"]  # the protocol's order
    assert result[0].table["ours", "insertion"] == pytest.approx(result[1].table["ours", "insertion"] + 0.25)
    assert result[2].table.images == ()
    written = report(store.path)
    page = written.page.read_text()
    assert "third: nothing is finished yet" in page
    assert 'id="overview"' in page
    means = {(row["model"], row["method"], row["metric"]): row["mean"] for row in rows(written.folder / "table.csv")}
    assert float(means["other", "ours", "deletion"]) - float(means["net", "ours", "deletion"]) == pytest.approx(0.25)
    assert {model for model, _, _ in means} == {"other", "net"}


def test_what_holds_for_several_is_said_once(tmp_path: Path) -> None:
    """Two pictures tell nothing apart in either metric: one row, and one note."""
    (result,) = collect(Store.open(create_run(tmp_path, protocol(), "ab")))
    finding = ModelResult.of(result, protocol())
    info = [flag for flag in finding.statistics.flags if flag.kind == "no better than random"]
    assert len(info) == 2 * 2
    page = report(tmp_path / "run").page.read_text()
    flags = page[page.index('id="m1-flags"') : page.index('id="m1-cost"')]
    assert flags.count("no better than random") == 1
    assert "<td>all</td><td>all</td><td>not told apart from random</td>" in flags
    few = [note for note in finding.statistics.notes if "too few" in note]
    assert few == ["all metrics: 2 images are too few for 3 tests to tell anything apart at 5 %"]
    assert few[0] in page[page.index('id="m1-scores"') : page.index('id="m1-ranks"')]


def test_a_wrong_reference_is_named(tmp_path: Path) -> None:
    run = create_run(tmp_path, protocol())
    with pytest.raises(VitreousError, match=r"'genric'.*did you mean generic"):
        report(run, reference="genric")
    assert not (run / "report").exists()


def cell(method: str, metric: str, value: float, **more: Any) -> Published:
    return Published(metric, "net", method, value=value, printed=100 * value, **more)


def mean(method: str, metric: str, pictures: str = "abcdefgh") -> float:
    return sum(score(image, method, metric) for image in pictures) / len(pictures)


def test_the_reproduction_names_facts(tmp_path: Path) -> None:
    near, far = mean("generic", "insertion"), mean("ours", "insertion") + 0.5
    printed = (
        cell("generic", "insertion", near),
        cell("ours", "insertion", far),
        cell("ours", "deletion", mean("ours", "deletion") + 0.2, error=0.3),
        cell("Lost", "deletion", 0.5),
        Published("deletion", "other net", "ours", value=0.5, printed=50.0),
        Published("deletion", source="figure only"),
    )
    spec = protocol(published=printed, absent={"Lost": "no code"}, data=DataSpec("folder", path="nowhere", images=5000))
    reproduction = report(create_run(tmp_path, spec, images=8)).reproduction
    assert reproduction is not None
    one, two, three, lost, other = reproduction.lines
    assert (one.verdict, two.verdict, three.verdict, lost.verdict, other.verdict) == (
        "agrees",
        "differs",
        "agrees",  # within the printed error
        "no number",
        "no number",
    )
    assert one.words.startswith("agrees within the interval, though: fewer images: 8 instead of 5000")
    assert two.difference == pytest.approx(-0.5)
    assert two.causes[0] == "fewer images: 8 instead of 5000"
    assert lost.words == "no method here: no code"
    assert other.words == "this model was not run"
    assert math.isnan(other.ours)
    assert reproduction.figures == ("figure only",)
    assert "5 printed cells: 2 agree" in reproduction.summary


def causes(tmp_path: Path, spec: Protocol, ran: Protocol, monkeypatch: pytest.MonkeyPatch, **wanted: Any) -> str:
    """Return the causes of one deviation, where ``known`` is what comes along under the name that was run."""
    monkeypatch.setattr("vitreous.benchmark.reproduction.shipped", lambda: ["mine"])
    monkeypatch.setattr("vitreous.benchmark.reproduction.read", lambda name: spec)
    reproduction = report(create_run(tmp_path, ran, **wanted)).reproduction
    assert reproduction is not None
    return reproduction.lines[0].words


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({}, "not explained by anything else that is known"),
        ({"models": (ModelSpec("net", "timm/vit_tiny_patch16_224"),)}, "other model: world instead of timm/vit_tiny"),
        ({"models": (ModelSpec("net", "world", size=64),)}, "other preprocessing: size own instead of 64"),
        ({"data": DataSpec("imagenet-val")}, "other images: folder instead of imagenet-val"),
        ({"data": DataSpec("folder", path="nowhere", images=100)}, "fewer images: 8 instead of 100"),
        ({"methods": {"generic": "generic", "ours": "rollout(start=1)"}}, "other method setting: rollout instead"),
        (
            {"evaluation": EvaluationSpec(tuple(METRICS), target="label")},
            "other class explained: pred instead of label",
        ),
        ({"data": DataSpec("folder", path="nowhere", class_subset="own")}, "other softmax"),
        (
            {"published": (Published("insertion@coiba", "net", "ours", value=9.0),)},
            "other metric setting: insertion instead",
        ),
    ],
)
def test_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], cause: str) -> None:
    ran = protocol(published=(cell("ours", "insertion", 9.0),))
    assert cause in causes(tmp_path, dataclasses.replace(ran, **change), ran, monkeypatch)


def test_weights_of_a_file_are_a_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = protocol(published=(cell("ours", "insertion", 9.0),))
    words = causes(tmp_path, ran, ran, monkeypatch, checkpoint={"net": "w.pt"})
    assert "other weights: those of w.pt (digest ffffffffffff)" in words


def test_statistics_of_scenes_are_a_cause(tmp_path: Path) -> None:
    ran = protocol({"generic": "generic", "ours": "coiba"}, published=(cell("ours", "insertion", 9.0),))
    setting = dataclasses.replace(SETTING, methods={**METHODS, "ours": "coiba"})
    options = {"protocol": ran.to_json(), "data": None, "images": None, "checkpoint": {}, "sources": []}
    store, unit = create_store(tmp_path, options), score_unit("abcdefgh", setting=setting)
    add_plan(store, [unit], setting)
    save_scores(store, unit)
    reproduction = report(store.path).reproduction
    assert reproduction is not None
    assert "other statistics: noise of coiba from world:64" in reproduction.lines[0].words


def test_our_order_and_the_papers(tmp_path: Path) -> None:
    methods = {"generic": "generic", "ours": "rollout"}
    values = {"generic": 0.1, "ours": 0.9, "random": 0.5}  # ours: longer names are higher
    spec = protocol(methods, published=tuple(cell(name, "insertion", value) for name, value in values.items()))
    reproduction = report(create_run(tmp_path, spec)).reproduction
    assert reproduction is not None
    (result,) = reproduction.agreements
    assert (result.model, result.metric, result.methods) == ("net", "insertion", 3)
    assert result.value == pytest.approx(-1.0)  # 21, 12, 18 against 1, 9, 5
    written = rows(tmp_path / "run" / "report" / "reproduction.csv")
    assert [row["paper"] for row in written] == ["0.1", "0.9", "0.5"]
    assert "rank correlation" in (tmp_path / "run" / "report" / "reproduction.md").read_text()


def test_a_model_of_ones_own_stands_beside_every_column(tmp_path: Path) -> None:
    paper = read("coiba-table1")
    ran = protocol({"Generic": "generic", "ours": "rollout"}, published=paper.published)
    setting = dataclasses.replace(
        SETTING,
        methods={"Generic": "generic", "ours": "rollout", "random": "random"},
        method_digests=dict.fromkeys(("Generic", "ours", "random"), "m"),
        metrics={"deletion@coiba": "deletion@coiba"},
    )
    ran = dataclasses.replace(ran, name="coiba-table1", evaluation=EvaluationSpec(("deletion@coiba",)))
    options = {"protocol": ran.to_json(), "data": None, "images": 8, "checkpoint": {}, "sources": []}
    store, unit = create_store(tmp_path, options), score_unit("abcdefgh", setting=setting)
    add_plan(store, [unit], setting)
    save_scores(store, unit)
    reproduction = report(store.path).reproduction
    assert reproduction is not None
    assert len(reproduction.lines) == len(paper.cells)
    there = [line for line in reproduction.lines if not math.isnan(line.ours)]
    assert {(line.cell.method, line.cell.metric) for line in there} == {("Generic", "deletion@coiba")}
    assert len(there) == len([c for c in paper.cells if (c.method, c.metric) == ("Generic", "deletion@coiba")])
    assert all("other model: world instead of timm/" in line.words for line in there)
    assert all("fewer images: 8 instead of 6000" in line.words for line in there)


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(report_command)
    run = create_run(tmp_path, protocol())
    done = CliRunner().invoke(app, [str(run), "--out", str(tmp_path / "there"), "--reference", "ours"])
    assert done.exit_code == 0, done.output
    assert "2 methods explain the predicted class of 8 pictures (folder) as seen by net" in done.output.replace(
        "\n", " "
    )
    assert (tmp_path / "there" / "report.html").is_file()
    assert not (run / "report").exists()


def test_what_differs_everywhere_is_said_once() -> None:
    causes = [("fewer images: 8", "other model: a instead of b"), ("other model: a instead of c", "fewer images: 8")]
    info = [*causes, (*causes[0], "other precision: float16")]
    lines = [
        ReproducedCell(Published("m", "b", str(i), value=0.1), 0.2, 0.15, 0.3, 8, "differs", item)
        for i, item in enumerate(info)
    ]
    lost = ReproducedCell(
        Published("m", "b", "lost", value=0.1), math.nan, math.nan, math.nan, 0, "no number", ("not run",)
    )
    reproduction = Reproduction(protocol(), (*lines, lost), (), ())
    assert reproduction.everywhere == ("fewer images: 8", "other model: a")
    messages = [line.words_beside(reproduction.everywhere) for line in reproduction.lines]
    assert messages == ["differs", "differs", "differs; other precision: float16", "not run"]
    html = render("benchmark_reproduction.html", reproduction=reproduction)
    assert html.count("fewer images: 8") == 1 + len(lines)  # in the text, and in what a click on the head sorts by
    assert Reproduction(protocol(), tuple(lines[:2]), (), ()).everywhere == ()


def test_another_baseline_is_another_column(tmp_path: Path) -> None:
    """A paper's column stands beside ours with other counts, never beside one that measures something else."""
    grey, blur = (f"insertion@tis(baseline={word})" for word in ("mean_scalar", "blur_tv"))
    ours = "insertion@tis(steps=28, baseline=mean_scalar)"
    spec = protocol(published=tuple(cell("ours", name, 9.0) for name in (grey, blur)))
    setting = dataclasses.replace(SETTING, metrics={ours: ours})
    evaluation = dataclasses.replace(spec.evaluation, metrics=(ours,))
    options = {"protocol": dataclasses.replace(spec, evaluation=evaluation).to_json(), "data": None, "images": None}
    store = create_store(tmp_path, {**options, "checkpoint": {}, "sources": []})
    unit = score_unit("abcdefgh", setting=setting, metrics=[ours])
    add_plan(store, [unit], setting)
    save_scores(store, unit)
    reproduction = report(store.path).reproduction
    assert reproduction is not None
    assert [line.verdict == "no number" for line in reproduction.lines] == [False, True]
    assert "other metric setting" in reproduction.lines[0].words
