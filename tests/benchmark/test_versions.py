"""Runs that another version of the code goes on with: kept, said, and told unit by unit."""

from __future__ import annotations

import csv
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import vitreous as vt
from commands import run as command
from run_files import add_plan, create_run, create_store, protocol, save_scores, score_unit
from tiny_benchmark import METRICS, bench, ran, tiny
from vitreous.benchmark import worker as module
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import parse_explainer
from vitreous.benchmark.report import report
from vitreous.benchmark.store import Store
from vitreous.benchmark.worker import other_versions, versions
from vitreous.errors import VitreousWarning


def test_the_code_is_part_of_the_version() -> None:
    """Between two releases the number stays; a digest of what can change a number does not."""
    outcome = versions()
    assert outcome["vitreous"].startswith(f"{vt.__version__} (")
    assert outcome["torch"] == torch.__version__
    assert outcome == versions()


def test_another_file_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmark").mkdir()
    for package in (*module._PACKAGES, "viz"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "benchmark" / "worker.py"))
    own = module._own_version.__wrapped__
    first = own()
    (tmp_path / "viz" / "one.py").write_text("a = 2\n")  # how it looks changes no number
    assert own() == first
    (tmp_path / "methods" / "one.py").write_bytes(b"a = 1\r\n")  # the same lines, as another system writes them
    assert own() == first
    (tmp_path / "methods" / "one.py").write_text("a = 2\n")
    assert own() != first


def test_packages_of_others_say_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("theirs")
    other.explain = lambda model, inputs, classes: inputs.sum(dim=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "theirs", other)
    modes = {text: parse_explainer(text, ["theirs:explain"]) for text in ("generic", "theirs:explain")}
    assert "theirs" not in versions(modes), "it offers none"
    other.__version__ = "1.2"  # type: ignore[attr-defined]
    assert versions(modes)["theirs"] == "1.2"
    assert versions({"generic": modes["generic"]}).keys() == {"vitreous", "torch"}
    (tmp_path / "maps").mkdir()
    import numpy as np

    np.save(tmp_path / "maps" / "a.npy", np.ones((2, 2)))
    folder = str(tmp_path / "maps")
    assert versions({folder: parse_explainer(folder)}).keys() == {"vitreous", "torch"}, "files have no version"


def test_what_is_mixed_in_words() -> None:
    description = [{"vitreous": name, "torch": "9"} for name in ("1", "1", "2")]
    here = {"vitreous": "2", "torch": "1"}
    assert (
        other_versions(description, here) == "2 units were done by vitreous 1, and what is left will be by vitreous 2"
    )
    assert other_versions(description[2:], here) == "", "another torch changes last digits alone"
    assert other_versions([{}], here) == ""
    other = [{"vitreous": "2", "theirs": "1"}]
    assert other_versions(other, {**here, "theirs": "3"}).endswith("what is left will be by theirs 3")
    assert other_versions(other, here) == "", "nothing is asked of them any more"


def test_going_on_with_another_version_is_warned_of_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", versions()["vitreous"]
    monkeypatch.setattr(module, "_own_version", lambda: "0.0.1 (abcd)")
    ran(tiny(images=2), out)
    assert Store(out).plans()[0].versions["vitreous"] == "0.0.1 (abcd)"
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench(tiny(images=2), out)  # nothing is left to do: nothing is mixed
    with pytest.warns(VitreousWarning, match=r"run: 2 units were done by vitreous 0\.0\.1 \(abcd\), and what is left "):
        ran(tiny(images=4), out)
    store = Store(out)
    assert store.plans()[1].versions["vitreous"] == real
    assert {store.info(unit)["versions"]["vitreous"] for unit in store.finished()} == {"0.0.1 (abcd)", real}
    written = report(out)
    text = f"Units are from several versions: 2 of Vitreous 0.0.1 (abcd), 2 of Vitreous {real}; units.csv says which."
    assert text in written.state
    page = written.page.read_text()
    assert text in page
    assert "vitreous 0.0.1 (abcd), torch" in page
    rows = list(csv.DictReader((written.folder / "units.csv").read_text().splitlines()))
    assert {row["unit"]: row["versions"].partition(",")[0] for row in rows} == {
        unit: f"vitreous {store.info(unit)['versions']['vitreous']}" for unit in store.finished()
    }
    assert [row["kind"] for row in rows] == ["maps", "scores"] * 2
    assert [row["plan"] for row in rows] == ["1", "1", "2", "2"]
    outcome = command("bench", "status", out)
    assert f"units are from several versions: 2 of Vitreous 0.0.1 (abcd), 2 of Vitreous {real}" in outcome.out


def test_the_command_says_it_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_own_version", lambda: "0.0.1 (abcd)")
    ran(tiny(images=2, methods=("rollout",), metrics=("gini",)), tmp_path / "run")
    monkeypatch.undo()
    (tmp_path / "p.toml").write_text(
        'schema = "vitreous.protocol/1"\ntitle = "Tiny"\nmodels = [{label = "world", name = "world"}]\n'
        '[data]\nsource = "world"\nsplit = "test"\nimages = 4\n'
        '[evaluation]\nmetrics = ["gini"]\nimages_per_unit = 2\ncontrols = false\n[methods]\nrollout = "rollout"\n'
    )
    arguments = ("--out", tmp_path / "run", "--device", "cpu", "--workers", "1", "--quiet")
    outcome = command("bench", "run", tmp_path / "p.toml", *arguments)
    assert outcome.code == 0
    (line,) = [item for item in outcome.err.splitlines() if "units were done by" in item]
    assert line.startswith("vitreous: warning: ")


def test_one_version_says_nothing(tmp_path: Path) -> None:
    written = report(create_run(tmp_path, protocol()))
    assert "several versions" not in written.page.read_text()


def test_plans_of_older_runs_have_no_versions(tmp_path: Path) -> None:
    store, unit = create_store(tmp_path), score_unit("ab")
    add_plan(store, [unit])
    save_scores(store, unit)
    file = store.path / "plans" / "0001.json"
    file.write_text(file.read_text().replace('"versions": {},', ""))
    assert Store(store.path).plans()[0].versions == {}


# -- other labels ----------------------------------------------------------------------------------------------------


def test_other_labels_are_planned_without_a_unit(tmp_path: Path) -> None:
    """Rows that are renamed once all is done would be no rows of the report, had no plan their new names."""
    out = tmp_path / "run"
    ran(tiny(images=2), out)
    store = ran(tiny(images=2, methods={"Attention": "raw_attention", "Rollout": "rollout"}), out)
    assert [(plan.why, len(plan.units)) for plan in store.plans()] == [("wanted", 2), ("other labels", 0)]
    (result,) = collect(store)
    assert result.table.methods == ("Attention", "Rollout")
    assert result.missing.cells == 0
    again = ran(tiny(images=2, methods={"Attention": "raw_attention"}, metrics=METRICS), out)
    assert len(again.plans()) == 2, "fewer rows are part of what is known"
