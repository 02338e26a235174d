"""Results at a prompt, in a notebook and in other formats; bars on the way; words that are not followed."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import TargetError, VitreousError, VitreousWarning


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def inputs(model: Any) -> Tensor:
    return images(model, 3)


@pytest.fixture(scope="module")
def table(model: Any, inputs: Tensor) -> vt.ScoreTable:
    metrics = ["deletion(steps=4)", "positive_perturbation"]
    return vt.evaluate(model, inputs, ["ixg", "plus(ixg, start=1)"], metrics, labels=[0, 1, 2], n_bootstrap=20)


class Cells(HTMLParser):
    """The texts of all cells, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open = tag in ("td", "th")
        if self.open:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.cells[-1] += data


# -- prompts and notebooks -----------------------------------------------------------------------------


def test_an_explanation_in_a_few_lines(model: Any, inputs: Tensor) -> None:
    printed = repr(vt.explain(model, inputs[0], "plus(ixg)", 3, contrast=[1], output="prob"))
    lines = printed.splitlines()
    assert len(lines) == 3
    assert all(word in lines[0] for word in ("input-0", "class 3", "rather than class 1", "prob"))
    assert "plus(ixg)" in lines[1]
    assert "map 4 x 4, from " in lines[2]
    assert "extras layers" in lines[2]
    assert len(repr(vt.explain(model, inputs[0]))) < 400
    assert repr(vt.explain(model, inputs[0])).count("quick") == 1


def test_a_comparison_in_a_few_lines(model: Any, inputs: Tensor) -> None:
    lines = repr(vt.compare(model, inputs[0], ["ixg", "generic"], [1, 2])).splitlines()
    assert "4 maps of input-0" in lines[0]
    assert lines[1].strip() == "methods: ixg, generic"
    assert lines[2].strip().startswith("classes: class 1 (")


def test_a_table_prints_and_shows_itself(table: vt.ScoreTable) -> None:
    assert repr(table).splitlines() == ["Table of 5 methods, 2 metrics, 3 images", *str(table).splitlines()]
    cells = Cells(table._repr_html_()).cells
    assert cells[: len(table.rows()[0])] == table.rows()[0]
    assert [item for row in table.rows() for item in row] == cells


def test_a_notebook_shows_names_and_obeys_none(model: Any, inputs: Tensor) -> None:
    odd = "<script>alert(1)</script>"
    created = vt.evaluate(model, inputs, {odd: "ixg"}, "deletion(steps=4)", controls=False, n_bootstrap=5)
    assert "<script" not in created._repr_html_()
    assert odd in Cells(created._repr_html_()).cells


def test_a_diagnosis_prints_and_shows_itself(model: Any) -> None:
    result = vt.diagnose(model)
    lines = repr(result).splitlines()
    assert lines[0].endswith(": healthy")
    passed = sum(check.verdict == "ok" for check in result.checks)
    assert lines[1].startswith(f"  {passed} of {len(result.checks)} checks ok, ")
    cells = Cells(result._repr_html_()).cells
    assert all(check.name in cells and check.sentence in cells for check in (*result.checks, *result.methods))
    messages = json.loads(json.dumps(result.to_json()))
    assert (messages["healthy"], len(messages["checks"])) == (True, len(result.checks))


def test_a_sick_model_says_what_failed() -> None:
    result = vt.diagnose(torch.nn.Linear(2, 2))
    assert repr(result).splitlines()[0] == "Linear: some checks failed"
    assert "failed: the model can be wrapped: no adapter knows" in repr(result)
    assert "no adapter knows" in result._repr_html_()


# -- other formats -------------------------------------------------------------------------------------


def test_means_and_intervals_as_csv(table: vt.ScoreTable, tmp_path: Path) -> None:
    text = table.to_csv()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 5 * 2
    for row in rows:
        cell = row["method"], row["metric"]
        assert float(row["mean"]) == table.mean(*cell)
        assert (float(row["low"]), float(row["high"])) == tuple(table.interval(*cell))
        assert row["images"] == "3"
    assert table.to_csv(tmp_path / "t.csv") == (tmp_path / "t.csv").read_text() == text
    with pytest.raises(VitreousError, match=r"t\.csv"):
        table.to_csv(tmp_path / "t.csv")
    table.to_csv(tmp_path / "t.csv", per_image=True, overwrite=True)
    assert table.save(tmp_path / "s.csv").read_text() == (tmp_path / "t.csv").read_text()


def test_scores_of_every_image(table: vt.ScoreTable) -> None:
    rows = list(csv.DictReader(io.StringIO(table.to_csv(per_image=True))))
    assert len(rows) == 5 * 2 * 3
    assert [float(row["score"]) for row in rows[:3]] == table[rows[0]["method"], rows[0]["metric"]].tolist()
    assert table.to_markdown(per_image=True).count("\n") == 2 + 30


def test_markdown_and_latex_have_the_printed_numbers(table: vt.ScoreTable) -> None:
    for text in (table.to_markdown(), table.to_latex()):
        for row in table.rows()[1:]:
            assert all(cell in text for cell in row[1:])
    head, rule, *rows = table.to_markdown().splitlines()
    assert head == r"| method | deletion(steps=4) ↓ | positive\_perturbation ↓ | degenerate maps |"
    assert rule == "| --- | ---: | ---: | ---: |"
    assert len(rows) == 5 + 1, "five methods, and what a trial found about the metrics"
    latex = table.to_latex()
    assert r"positive\_perturbation $\downarrow$" in latex
    assert latex.startswith("\\begin{tabular}{lrrr}\n")
    assert latex.endswith("\\end{tabular}\n")


def test_without_pandas_one_line_says_so(table: vt.ScoreTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(VitreousError, match="needs pandas, which is not installed; to_csv does without"):
        table.to_pandas()


def test_a_data_frame(table: vt.ScoreTable) -> None:
    pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert list(frame.columns) == ["method", "metric", "mean", "low", "high", "images"]
    chosen = frame[(frame.method == "ixg") & (frame.metric == "deletion(steps=4)")].iloc[0]
    assert (chosen["mean"], chosen.images) == (table.mean("ixg", "deletion(steps=4)"), 3)
    assert math.isclose(table.to_pandas(per_image=True).score.sum(), sum(map(sum, table.scores.values())))


# -- arguments -----------------------------------------------------------------------------------------


def test_a_text_is_one_method_or_several(model: Any, inputs: Tensor) -> None:
    assert [item.method for item in vt.compare(model, inputs[0], "generic")] == ["generic"]
    several = vt.compare(model, inputs[0], "generic, plus(ixg, start=1)")
    assert [item.method for item in several] == ["generic", "plus(ixg, start=1)"]
    assert [item.method for item in vt.compare(model, inputs[0], vt.get_method("ixg"))] == ["ixg"]
    for nothing in ("", ","):
        with pytest.raises(VitreousError, match="expected a method name"):
            vt.compare(model, inputs[0], nothing)


def test_a_bar_is_drawn_where_it_is_asked_for(model: Any, inputs: Tensor) -> None:
    def image_of_map(**asked: Any) -> str:
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages):
            vt.explain(model, inputs, "ixg", **asked)
            vt.compare(model, inputs[0], "ixg", **asked)
            vt.evaluate(model, inputs, "ixg", "deletion(steps=4)", n_bootstrap=5, **asked)
        return messages.getvalue()

    assert image_of_map() == image_of_map(progress=None) == image_of_map(progress=False) == ""
    printed = image_of_map(progress=True)
    assert all(word in printed for word in ("explaining", "3.0/3", "comparing", "1.0/1", "states"))
    calls: list[tuple[float, int | None]] = []
    assert image_of_map(progress=lambda done, total: calls.append((done, total))) == ""
    assert (3, 3) in calls
    with pytest.raises(VitreousError, match="progress='yes' is neither True nor a function"):
        image_of_map(progress="yes")


def warned(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        call()
    return [str(item.message) for item in messages if issubclass(item.category, VitreousWarning)]


@pytest.mark.parametrize(("method", "own"), [("logprob(ixg)", "logprob"), (None, "logprob")])
def test_a_value_that_is_not_followed(model: Any, inputs: Tensor, method: str | None, own: str) -> None:
    (text,) = warned(lambda: vt.explain(model, inputs, method, output="prob", batch_size=1))
    assert text.startswith("output='prob' is not what is explained: ")
    assert f"explains {own}" in text
    assert warned(lambda: vt.explain(model, inputs, method)) == []
    assert warned(lambda: vt.explain(model, inputs, method, output=own)) == []
    assert warned(lambda: vt.explain(model, inputs, "ixg", output="prob")) == []


def test_the_default_value_is_the_logit(model: Any, inputs: Tensor) -> None:
    default, asked = vt.explain(model, inputs[0], "ixg"), vt.explain(model, inputs[0], "ixg", output="logit")
    assert (default.request.requested_output, default.output, default.identity) == ("logit", "logit", asked.identity)
    for call in (vt.explain, vt.compare):
        with pytest.raises(TargetError, match="is not one of logit, prob, logprob"):
            call(model, inputs[0], output="")


def test_a_table_tells_it_too(model: Any, inputs: Tensor) -> None:
    def warnings_of(**options: Any) -> list[str]:
        return warned(lambda: vt.evaluate(model, inputs, ["ixg", "tis(masks=4)"], "insdel", controls=False, **options))

    assert warnings_of() == []
    (text,) = warnings_of(output="logprob")
    assert text == "output='logprob' is not what is explained: tis(masks=4) explains prob, whatever is asked for"


def test_a_class_that_changes_nothing(model: Any, inputs: Tensor) -> None:
    (text,) = warned(lambda: vt.explain(model, inputs, "rollout", target=3, batch_size=1))
    assert text == "rollout knows no class: the map is the same for any target"
    assert warned(lambda: vt.compare(model, inputs[0], "rollout, ixg", [1, 2])) == []  # its tiles name no class
    for silent in (None, "pred"):
        assert warned(lambda target=silent: vt.explain(model, inputs, "rollout", target=target)) == []
    assert warned(lambda: vt.compare(model, inputs[0], target=1)) == []
    assert warned(lambda: vt.explain(model, inputs, "ixg", target=1)) == []
