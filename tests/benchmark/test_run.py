"""Runs of a benchmark: extended, resumed, shared, interrupted by faults, and refused where they do not fit."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous as vt
from commands import run as command
from tiny_benchmark import METHODS, METRICS, assert_close, assert_same, bench, copied, of_folder, photos, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import Options
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store, status
from vitreous.benchmark.worker import Worker
from vitreous.errors import VitreousError
from vitreous.io import atomic as writing

pytestmark = pytest.mark.usefixtures("one_thread")

# -- plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "planned"),
    [
        ({"methods": (*METHODS, "saliency")}, 4),
        ({"metrics": (*METRICS, "gini")}, 2),
        ({"images": 7}, 4),  # three more pictures: two units of maps and two of scores
        ({"seeds": (0, 1)}, 4),
    ],
    ids=["method", "metric", "pictures", "seed"],
)
def test_extending_adds_units_and_changes_none(complete: Path, tmp_path: Path, more: Any, planned: int) -> None:
    out = copied(complete, tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (out / "units").glob("*.npz")}
    first = (out / "plans" / "0001.json").read_bytes()
    store = ran(tiny(**more), out)
    assert (out / "plans" / "0001.json").read_bytes() == first
    assert {name: (out / "units" / name).read_bytes() for name in before} == before
    assert [plan.why for plan in store.plans()] == ["wanted", "extended"]
    assert len(store.plans()[1].units) == planned
    assert not {unit.id for unit in store.plans()[1].units} & {Path(name).stem for name in before}
    ran(tiny(**more), tmp_path / "fresh")
    assert_close(out, tmp_path / "fresh")


def test_the_same_again_plans_nothing(complete: Path, tmp_path: Path) -> None:
    out = copied(complete, tmp_path / "run")
    store = bench(tiny(), out).store
    assert len(store.plans()) == 1
    assert bench(tiny(images=2), out).counts() == (4, 4)  # fewer pictures are part of what is there


def test_a_row_under_another_label_is_the_same_row(complete: Path, tmp_path: Path) -> None:
    out = copied(complete, tmp_path / "run")
    renamed = {"Attention": "raw_attention", "Rollout": "rollout"}
    assert bench(tiny(methods=renamed), out).counts() == (4, 4)
    store = ran(tiny(methods=renamed, metrics=(*METRICS, "gini")), out)  # scores old maps under new labels
    assert len(store.finished()) == 6


def test_ids_know_nothing_of_places_and_names_of_models(tmp_path: Path) -> None:
    one = bench(of_folder(photos(tmp_path / "a", 2)), tmp_path / "one").store
    other = bench(of_folder(photos(tmp_path / "b", 2)), tmp_path / "other").store
    assert [unit.id for unit in one.plans()[0].units] == [unit.id for unit in other.plans()[0].units]


def test_recorded_threads_and_sizes_stay(complete: Path, tmp_path: Path) -> None:
    out = copied(complete, tmp_path / "run")
    created = BenchmarkRun(tiny(images=6), out, Options(device="cpu", threads=2, memory_gb=1.0))
    created.prepare()
    first, second = (plan.configs[0] for plan in created.store.plans())
    assert (second.threads, second.batch_sizes) == (1, first.batch_sizes)
    created.work()
    (new,) = {created.store.info(unit.id)["threads"] for unit in created.store.plans()[1].units}
    assert new == 1


# -- resuming and sharing ----------------------------------------------------------------------------------


class Stopped(BaseException):
    """What ends a run in the middle."""


@pytest.mark.parametrize("after", [1, 2, 3])
def test_resumed_equals_uninterrupted(complete: Path, tmp_path: Path, after: int) -> None:
    def stop(done: float, total: int | None) -> None:
        if done == after:
            raise Stopped

    out = tmp_path / "run"
    with pytest.raises(Stopped):
        bench(tiny(), out).work(progress=stop)
    assert len(Store(out).finished()) == after
    ran(tiny(), out)
    assert_same(out, complete)
    assert len(Store(out).plans()) == 1


_PROCESS = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from tiny_benchmark import bench, tiny
made = bench(tiny(), Path({out!r}))
made.work(on_begin=lambda unit: print(unit, flush=True))
"""


def test_two_processes_on_one_folder(complete: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = textwrap.dedent(_PROCESS).format(path=[str(Path(__file__).parent.parent / "support")], out=str(out))
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outcome = [item.communicate(timeout=240)[0].split() for item in both]
    assert [item.returncode for item in both] == [0, 0]
    assert len(outcome[0]) + len(outcome[1]) == len({*outcome[0], *outcome[1]}) == 4
    assert len(Store(out).plans()) == 1
    assert_same(out, complete)


def test_a_unit_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    created = bench(tiny(), tmp_path / "run")
    held = created.store.plans()[0].units[0]
    with created.store.claim(held.id) as mine:
        assert mine
        created.work()
    assert len(created.store.finished()) == 2  # not the maps that are held, and not their scores
    created.work()
    assert created.counts() == (4, 4)


def test_shards_share_everything_and_stay_as_they_are(tmp_path: Path) -> None:
    def of(created: BenchmarkRun) -> list[set[tuple[str, ...]]]:
        return [{unit.images for _, unit in created.open_units((number, 3))} for number in range(3)]

    protocol = tiny(images=12, metrics=("gini",))
    created = bench(protocol, tmp_path / "run")
    before = of(created)
    assert [len(item) for item in before] == [2, 2, 2]
    assert len(set().union(*before)) == 6

    def stop(done: float, total: int | None) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        created.work((1, 3), stop)  # maps of one group are there now, and not their scores
    assert of(created) == before
    for number in range(3):
        created.work((number, 3))
    assert created.counts() == (12, 12)
    ran(protocol, tmp_path / "alone")
    assert_same(tmp_path / "run", tmp_path / "alone")


# -- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "truncated", "garbage", "flipped"])
def test_damaged_files_are_made_again(complete: Path, tmp_path: Path, damage: str) -> None:
    out = copied(complete, tmp_path / "run")
    for unit in Store(out).plans()[0].units[:2]:  # maps and scores
        file = out / "units" / f"{unit.id}.npz"
        content = bytearray(file.read_bytes())
        if damage == "flipped":
            content[len(content) // 3] ^= 0xFF
        else:
            content = {"empty": b"", "truncated": content[: len(content) // 2], "garbage": b"PK" + b"\0" * 99}[damage]
        file.write_bytes(content)
    ran(tiny(), out)
    assert_same(out, complete)


def test_a_full_disk_stops_in_one_line_and_goes_on_later(
    complete: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, written = writing._open, []

    class Full(io.RawIOBase):
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, content: Any) -> int:
            self.file.write(bytes(content)[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            self.file.close()

    def fills_up(path: Path) -> Any:
        written.append(path)
        file = opened(path)
        return Full(file) if len(written) > 4 else file

    created = bench(tiny(), tmp_path / "run")
    written.clear()
    written += [Path()] * 2  # two units fit
    monkeypatch.setattr(writing, "_open", fills_up)
    with pytest.raises(VitreousError, match=r"could not write .*npz: No space left on device$"):
        created.work()
    monkeypatch.undo()
    assert len(created.store.finished()) == 2
    assert not list((tmp_path / "run" / "units").glob(".vitreous-*"))
    ran(tiny(), tmp_path / "run")
    assert_same(tmp_path / "run", complete)


def test_other_weights_under_the_same_label_are_refused(complete: Path, tmp_path: Path) -> None:
    out = copied(complete, tmp_path / "run")
    before = (out / "run.json").read_bytes()
    with pytest.raises(VitreousError, match=r"^world has other weights than this run was begun with"):
        bench(tiny(name="world-shortcut"), out)
    assert (out / "run.json").read_bytes() == before


def test_changed_pictures_are_refused_by_name(tmp_path: Path) -> None:
    folder, out = photos(tmp_path / "photos", 3), tmp_path / "run"
    created = bench(of_folder(folder), out)
    good = (folder / "0001.png").read_bytes()
    (folder / "0001.png").write_bytes((folder / "0000.png").read_bytes())
    with pytest.raises(VitreousError, match=r"^0001\.png of folder has changed"):
        created.work()  # it was planned with the other one
    with pytest.raises(VitreousError, match=r"^0001\.png of folder has changed"):
        bench(of_folder(folder), out)
    (folder / "0001.png").unlink()
    with pytest.raises(VitreousError, match=r"^0001\.png, which this run was planned with, is not among"):
        bench(of_folder(folder), out)
    (folder / "0001.png").write_bytes(good)
    assert len(ran(of_folder(folder), out).finished()) == 4
    (folder / "0002.png").write_bytes(good)
    with pytest.raises(VitreousError, match=r"^0002\.png of folder has changed"):
        bench(of_folder(folder), out)  # although all is done


def test_a_report_without_pictures_has_the_rows_of_one_with_them(tmp_path: Path) -> None:
    """Pictures were added, taken away and renamed between runs; then the folder is gone."""
    folder, out = photos(tmp_path / "photos", 4), tmp_path / "run"
    ran(of_folder(folder, metrics=("gini",)), out)
    photos(tmp_path / "more", 6)
    (tmp_path / "more" / "0005.png").rename(folder / "0005.png")
    (folder / "0001.png").unlink()
    (folder / "0002.png").rename(folder / "renamed.png")
    store = ran(of_folder(folder, metrics=("gini",)), out)
    (result,) = collect(store)
    assert result.table.images == ("0000.png", "0003.png", "0005.png", "renamed.png")
    assert result.missing.cells == 0


def test_out_of_memory_halves_and_is_a_new_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, kind = 3, type(vt.load("world", device="cpu"))
    embed = kind.embed

    def tight(self: Any, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > most:
            raise torch.OutOfMemoryError("out of memory, says the test")
        return embed(self, inputs)

    monkeypatch.setattr(kind, "embed", tight)
    store = ran(tiny(images=8, images_per_unit=4), tmp_path / "run")
    monkeypatch.undo()
    plans = store.plans()
    assert len(plans) >= 2
    assert all(plan.why.startswith("out of memory on world: attribution_batch ") for plan in plans[1:])
    assert plans[-1].configs[0].evaluation.attribution_batch <= most
    assert plans[-1].configs[0].evaluation.forward_batch <= most
    for unit in store.finished():  # each was run as its plan says, from the beginning
        description = store.info(unit)
        setting = plans[description["revision"] - 1].configs[description["unit"]["config"]]
        sizes = setting.batch_sizes
        assert description["attribution_batch"] == sizes["attribution_batch"]
        assert description.get("forward_batch", sizes["forward_batch"]) == sizes["forward_batch"]
    assert status(store).revisions == {plan.revision: plan.why for plan in plans}
    assert status(store).done == status(store).total == 4
    ran(tiny(images=8, images_per_unit=4), tmp_path / "roomy")
    assert_close(tmp_path / "run", tmp_path / "roomy")
    later = bench(tiny(images=10, images_per_unit=4), tmp_path / "run").store.plans()[-1]
    assert (later.why, later.configs[0].batch_sizes) == ("extended", plans[-1].configs[0].batch_sizes)


def _corrupt(folder: Path, every: int) -> list[str]:
    bad = sorted(folder.iterdir())[::every]
    for number, file in enumerate(bad):
        file.write_bytes([b"", b"not a picture", file.read_bytes()[:60]][number % 3])
    return [file.name for file in bad]


@pytest.mark.parametrize(
    ("count", "every", "unit"), [(8, 3, 2), pytest.param(1000, 10, 32, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_unreadable_pictures_are_listed_and_left_out(tmp_path: Path, count: int, every: int, unit: int) -> None:
    folder = photos(tmp_path / "photos", count)
    bad = _corrupt(folder, every)
    store = ran(of_folder(folder, images_per_unit=unit, methods=("raw_attention",)), tmp_path / "run")
    result = status(store)
    assert sorted(result.unreadable) == bad
    assert result.done == result.total
    assert all(result.unreadable.values())
    outcome = command("bench", "status", tmp_path / "run")
    assert f"{len(bad)} images cannot be read" in outcome.out
    assert bad[0] in outcome.out
    scored = [store.info(unit.id) for unit in store.plans()[0].units if unit.is_scoring]
    assert sum(len(info["images"]) for info in scored) == count - len(bad)


def test_a_unit_in_which_nothing_can_be_read(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 2)
    bad = _corrupt(folder, 1)
    assert sorted(status(ran(of_folder(folder), tmp_path / "run")).unreadable) == bad


def test_surprises_are_tried_again_and_recorded(
    complete: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, calls = Worker.run, []

    def fails_first(self: Worker, job: Any, read: Any) -> Any:
        calls.append(job.unit.id)
        if len(calls) == 1:
            raise RuntimeError("a surprise\nof two lines")
        return right(self, job, read)

    monkeypatch.setattr(Worker, "run", fails_first)
    store = ran(tiny(), tmp_path / "run")
    assert store.failures() == {calls[0]: [r"RuntimeError: a surprise\nof two lines"]}
    assert store.info(calls[0])["retried"] == [r"RuntimeError: a surprise\nof two lines"]
    assert [store.info(unit)["retried"] for unit in store.finished() - {calls[0]}] == [[]] * 3
    assert_same(tmp_path / "run", complete)


def test_a_unit_that_always_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created, right = bench(tiny(), tmp_path / "run"), Worker.run
    bad = created.store.plans()[0].units[0].id

    def fails(self: Worker, job: Any, read: Any) -> Any:
        if job.unit.id == bad:
            raise RuntimeError("always")
        return right(self, job, read)

    monkeypatch.setattr(Worker, "run", fails)
    with pytest.raises(VitreousError, match=r"^1 units failed 3 times, such as RuntimeError: always"):
        created.work()
    assert len(created.store.finished()) == 2
    assert len(created.store.failures()[bad]) == 3


def test_folders_that_are_no_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(VitreousError, match="no run of ours"):
        bench(tiny(), tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]
    with pytest.raises(VitreousError, match=r"there is no run\.json"):
        Store.open(tmp_path)


def test_a_folder_that_was_only_begun_is_taken(complete: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".vitreous-0123456789abcdef.lock").touch()  # what is left of a process that was killed right here
    ran(tiny(), out)
    assert_same(out, complete)
