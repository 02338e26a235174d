"""What a run has found, in Python: the numbers of the report, in a notebook and as CSV."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import vitreous as vt
from vitreous.benchmark.report import report
from vitreous.errors import VitreousError
from web_runs import ALL, METRICS, done, finished_run, planned


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("results") / "run")


@pytest.fixture(scope="module")
def result(run: Path) -> vt.BenchmarkResults:
    return vt.load_run(run)


class Rows(HTMLParser):
    """The texts of all cells, row by row, and every tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert attrs == []  # no style and no script of its own
        self.open = tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])
        elif self.open:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.rows[-1][-1] += data


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_numbers_are_those_of_the_report(run: Path, result: vt.BenchmarkResults, tmp_path: Path) -> None:
    written = report(run, tmp_path / "report")
    reported = lines((written.folder / "table.csv").read_text())
    assert [{**line, "paper": ""} for line in lines(result.to_csv())] == [{**their, "paper": ""} for their in reported]
    scores = lines((written.folder / "scores.csv").read_text())
    mine = lines(result.to_csv(tmp_path / "mine.csv", per_image=True))
    assert mine == [{name: value for name, value in score.items() if name != "seed"} for score in scores]
    assert lines((tmp_path / "mine.csv").read_text()) == mine
    assert result.lead == written.lead


def test_it_shows_itself(result: vt.BenchmarkResults) -> None:
    printed = Rows(result._repr_html_())
    assert printed.tags == {"p", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    heads = [place for place, row in enumerate(printed.rows) if row[0] == "method"]
    assert [len(printed.rows[place]) - 1 for place in heads] == [len(METRICS), 1]
    assert [row[0] for row in printed.rows[1 : heads[1]]] == list(ALL)  # a name is a name, tags and all
    messages = {(line["data"], line["method"], line["metric"]): float(line["mean"]) for line in lines(result.to_csv())}
    for name, *cells in printed.rows[1 : heads[1]]:
        for metric, text in zip(METRICS, cells, strict=True):
            number = re.search(r"-?\d+\.\d+", text)
            assert number is not None
            assert float(number[0]) == pytest.approx(messages["test", name, metric], abs=6e-3)
    dropping = next(cells for name, *cells in printed.rows if name == "tis")
    assert "◆" in dropping[METRICS.index("token_deletion_aopc")]
    assert "◆" not in dropping[METRICS.index("gini")]
    best = [row[2] for row in printed.rows[1 : heads[1]] if "(best)" in row[2]]
    assert len(best) == 1
    assert float(re.findall(r"-?\d+\.\d+", best[0])[0]) == pytest.approx(
        max(value for (data, _, metric), value in messages.items() if (data, metric) == ("test", "gini")), abs=6e-3
    )


def test_it_prints(run: Path, result: vt.BenchmarkResults) -> None:
    assert repr(result).startswith(f"Results of {run}\n{result.lead}")
    assert str(result.table(data="train")) in str(result)


def test_tables_by_their_names(result: vt.BenchmarkResults) -> None:
    assert len(result) == 2
    assert result.table(data="train") is result[1].table
    assert result.table("world", "test") is result[0].table
    assert [item.scores.data for item in result[:]] == ["test", "train"]
    for wrong in ({}, {"model": "world"}, {"data": "nothing"}, {"model": "nobody", "data": "test"}):
        with pytest.raises(VitreousError, match="world on test, world on train"):
            result.table(**wrong)


def test_of_an_unfinished_run(tmp_path: Path) -> None:
    store = planned(tmp_path / "run")
    assert "294 of 294 cells" in str(vt.load_run(store.path))
    assert "<table>" not in vt.load_run(store.path)._repr_html_()
    assert vt.load_run(store.path).to_csv() == ""
    done(store, next(unit for plan in store.plans() for unit in plan.units if unit.is_scoring))
    assert "Unfinished" in vt.load_run(store.path)._repr_html_()
    assert "<table>" in vt.load_run(store.path)._repr_html_()


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=r"no run\.json"):
        vt.load_run(tmp_path)


def test_another_reference(run: Path) -> None:
    assert vt.load_run(run, reference="saliency")[0].statistics.reference == "saliency"
    with pytest.raises(VitreousError, match="nobody"):
        vt.load_run(run, reference="nobody")
