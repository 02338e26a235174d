"""From the files of a run to tables; the stores are written by hand, with numpy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from run_files import (
    METHODS,
    METRICS,
    SETTING,
    add_plan,
    create_store,
    protocol,
    save_maps,
    save_scores,
    save_unit,
    score,
    score_unit,
)
from vitreous.benchmark.collect import collect
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec
from vitreous.benchmark.store import Store
from vitreous.benchmark.units import Unit


def begun_with(tmp_path: Path, metrics: Iterable[str], seeds: tuple[int, ...] = (0,)) -> Store:
    evaluation = EvaluationSpec(tuple(metrics), seeds=seeds)
    return create_store(tmp_path, {"protocol": protocol(evaluation=evaluation).to_json()})


def test_cells_stand_where_they_belong(tmp_path: Path) -> None:
    store, units = create_store(tmp_path), [score_unit("ab"), score_unit("cd")]
    add_plan(store, units)
    for unit in units:
        save_scores(store, unit, flags=("c" * 8, "ours"))
    (result,) = collect(store)
    table = result.table
    assert table.images == ("picture a", "picture b", "picture c", "picture d")
    assert table.methods == ("generic", "ours", "random")
    assert table.metrics == ("insertion", "deletion")
    for method in METHODS:
        for metric in METRICS:
            expected = [score(item, method, metric) for item in "abcd"]
            assert table[method, metric].tolist() == expected
            assert np.allclose(table.curve(method, metric).y, np.array(expected)[:, None] + [0, 1, 2], atol=1e-6)
    assert table.confidence["pred"].tolist() == [0.01, 0.02, 0.03, 0.04]
    assert table.degenerate["ours"] == {"constant": 1, "zero": 0, "nonfinite": 0}
    assert sum(table.degenerate["generic"].values()) == 0
    assert (result.missing.wanted, result.missing.cells) == (4 * 3 * 2, 0)
    assert result.seconds == {"scoring": 4.0}
    assert [done.versions for done in result.units] == ["vitreous 0, torch 1"] * 2
    assert table.groups is None


def test_what_is_missing_is_counted(tmp_path: Path) -> None:
    store = create_store(tmp_path)
    full, half, never, cut = (
        score_unit("ab"),
        score_unit("cd", metrics=["insertion"]),
        score_unit("ef"),
        score_unit("g"),
    )
    others = score_unit("cd", metrics=["deletion"])
    add_plan(store, [full, half, others, never, cut])
    save_scores(store, full, bad=["b" * 8])
    save_scores(store, half)
    save_scores(store, cut)
    file = store.path / "units" / f"{cut.id}.npz"
    file.write_bytes(file.read_bytes()[:-40])
    (result,) = collect(store)
    assert result.table.images == ("picture a", "picture c", "picture d")  # those with any score
    assert result.unreadable == {"picture b": "cut short"}
    assert np.isnan(result.table["ours", "deletion"]).tolist() == [False, True, True]
    assert not np.isnan(result.table["ours", "insertion"]).any()
    assert np.isnan(result.table.curve("ours", "deletion").y[1:]).all()
    wanted = 6 * 3 * 2  # b cannot be read
    assert (result.missing.wanted, result.missing.cells) == (wanted, wanted - 3 * 2 - 2 * 3)
    assert result.table.mean("ours", "deletion") == pytest.approx(score("a", "ours", "deletion"))


def test_the_first_plan_that_has_a_cell_counts(tmp_path: Path) -> None:
    store = create_store(tmp_path)
    first, second = score_unit("ab", methods=["generic"]), score_unit("bc", methods=["generic", "random"])
    add_plan(store, [first])
    add_plan(store, [second])
    save_scores(store, first)
    save_scores(store, second, shift=0.5)
    (result,) = collect(store)
    values = result.table["generic", "insertion"]
    expected = [
        score("a", "generic", "insertion"),
        score("b", "generic", "insertion"),
        score("c", "generic", "insertion") + 0.5,
    ]
    assert values == pytest.approx(expected)
    there = result.table["random", "insertion"]
    assert np.isnan(there).tolist() == [True, False, False]
    assert there[1:] == pytest.approx([score(item, "random", "insertion") + 0.5 for item in "bc"])
    assert [done.plan.revision for done in result.units] == [1, 2]


def test_a_cell_of_the_first_plan_waits_for_its_unit(tmp_path: Path) -> None:
    store = create_store(tmp_path)
    add_plan(store, [score_unit("a")])
    later = score_unit("ab")
    add_plan(store, [later])
    save_scores(store, later)
    (result,) = collect(store)
    assert result.table.images == ("picture b",)


def test_units_that_were_replaced_do_not_count(tmp_path: Path) -> None:
    store, old = create_store(tmp_path), score_unit("ab")
    small = SETTING.with_batch_sizes(attribution_batch=4)
    new = score_unit("ab", setting=small)
    assert new.id != old.id
    add_plan(store, [old])
    add_plan(store, [new], small, [old.id])
    save_scores(store, old, shift=9.0)
    save_scores(store, new)
    (result,) = collect(store)
    assert result.table["ours", "insertion"] == pytest.approx([score(item, "ours", "insertion") for item in "ab"])


def test_rows_may_be_called_otherwise_later(tmp_path: Path) -> None:
    store, old = create_store(tmp_path), score_unit("ab")
    add_plan(store, [old])
    save_scores(store, old)
    methods = {"Generic": "generic", "ours": "rollout", "random": "random"}
    renamed = dataclasses.replace(SETTING, methods=methods, method_digests=dict.fromkeys(methods, "m"))
    new = score_unit("c", setting=renamed)
    add_plan(store, [new], renamed)
    save_scores(store, new)
    wanted = {"protocol": protocol(methods).to_json()}
    store = Store.create(store.path, wanted)
    (result,) = collect(store)
    assert result.table.methods == ("Generic", "ours", "random")
    assert not np.isnan(result.table["Generic", "insertion"]).any()
    assert result.table["Generic", "insertion"][:2].tolist() == [score(item, "generic", "insertion") for item in "ab"]


def test_seeds_have_a_table_each(tmp_path: Path) -> None:
    store, units = begun_with(tmp_path, METRICS, (0, 7)), [score_unit("abc", seed) for seed in (0, 7)]
    add_plan(store, units)
    for unit in units:
        save_scores(store, unit)
    (result,) = collect(store)
    assert result.seeds == (0, 7)
    assert [table.seed for table in result.tables] == [0, 7]
    both = result.seed_scores["ours", "deletion"]
    assert both.tolist() == [[score(item, "ours", "deletion", seed) for item in "abc"] for seed in (0, 7)]
    assert result.missing.wanted == 3 * 3 * 2 * 2


def test_maps_and_seconds(tmp_path: Path) -> None:
    store = create_store(tmp_path)
    pictures = ["a" * 8, "b" * 8]
    both = Unit.of(SETTING, 0, 0, pictures, ["generic", "ours"], modes=["given"])
    alone = Unit.of(SETTING, 0, 0, pictures, ["random"], modes=["given"])
    unit = score_unit("ab")
    add_plan(store, [both, alone, unit])
    third = Unit.of(SETTING, 0, 0, ["c" * 8], ["random", "generic"], modes=["given"])
    add_plan(store, [third])
    save_maps(store, both), save_maps(store, alone), save_maps(store, third), save_scores(store, unit)
    (result,) = collect(store)
    map = result.map("b" * 8, "ours")
    assert map is not None
    assert map.tolist() == [[42, 42], [42, 42]]  # 10 for each letter of ours, and 2 for b
    assert result.map("c" * 8, "ours") is None
    assert result.seconds == {"attribution": 18.0, "scoring": 2.0}


def test_a_later_data_set_of_the_same_pictures(tmp_path: Path) -> None:
    """Nothing of it has to be planned or run: cells are known by what they are."""
    both = protocol(data=DataSpec("folder", label="one"), also=(DataSpec("folder", label="two"),))
    store = create_store(tmp_path, {"protocol": both.to_json()})
    one, two = (dataclasses.replace(SETTING, data=label) for label in ("one", "two"))
    unit = score_unit("ab", setting=one)
    add_plan(store, [unit], one)
    add_plan(store, [], two)
    save_scores(store, unit)
    first, second = collect(store)
    assert (first.data, second.data) == ("one", "two")
    assert second.table["ours", "insertion"].tolist() == first.table["ours", "insertion"].tolist()
    assert second.missing.cells == 0


class Listed:
    """Pictures at hand, in an order of their own."""

    def __init__(self, order: str, group: int | None = None) -> None:
        self.digests = tuple(item * 8 for item in order)
        self.group = group

    def entry(self, digest: str) -> Any:
        group = None if self.group is None else ord(digest[0]) % self.group
        return type("Entry", (), {"name": f"{digest[0]}.png", "group": group})


def test_pictures_at_hand_give_order_names_and_groups(tmp_path: Path) -> None:
    store, unit = create_store(tmp_path), score_unit("abcd")
    add_plan(store, [unit])
    save_scores(store, unit)
    (result,) = collect(store, {"": Listed("dbaz", 2)})
    assert result.table.images == ("d.png", "b.png", "a.png")  # c is not wanted any more, z not there yet
    assert result.table.groups == (0, 0, 1)
    assert result.missing.cells == 3 * 2
    assert result.table["ours", "insertion"].tolist() == [score(item, "ours", "insertion") for item in "dba"]


def test_without_pictures_rows_are_those_last_asked_for(tmp_path: Path) -> None:
    """Units of pictures that went out of a list stay on disk, and count no more; rows of a group belong together."""
    store = create_store(
        tmp_path, {"protocol": protocol().to_json(), "image_digests": {"": [["d" * 8, "b" * 8], [5, 5]]}}
    )
    unit = score_unit("abcd")
    add_plan(store, [unit])
    save_scores(store, unit)
    (result,) = collect(store)
    assert result.table.images == ("picture d", "picture b")
    assert result.table.groups == (5, 5)
    assert result.missing.cells == 0
    (other,) = collect(store, {"": Listed("abc")})
    assert other.table.images == ("a.png", "b.png", "c.png"), "those at hand count more"
    assert other.table.groups is None


def test_a_metric_that_is_no_mean_keeps_its_parts(tmp_path: Path) -> None:
    setting = dataclasses.replace(SETTING, metrics={"mean_iou": "mean_iou"})
    store, unit = begun_with(tmp_path, ["mean_iou"]), score_unit("ab", setting=setting)
    add_plan(store, [unit], setting)
    parts = np.array([[1.0, 2.0, 3.0, 4.0], [4.0, 4.0, 1.0, 9.0]])
    info = {"images": list(unit.images), "unreadable": {}, "seconds": 1.0}
    save_unit(store, unit, {f"parts/{i}/0": parts for i in range(3)}, info)
    (result,) = collect(store)
    assert result.table.parts["ours", "mean_iou"].tolist() == parts.tolist()
