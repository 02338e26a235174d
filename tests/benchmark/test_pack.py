"""A run as one file: what is packed comes out again, in a new place or beside what is there; nothing else gets in."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tiny_benchmark import METRICS, bench, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.pack import pack, unpack
from vitreous.benchmark.store import Store
from vitreous.errors import VitreousError


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "run"
    ran(tiny(), out)
    return out


def files(folder: Path) -> dict[str, bytes]:
    remaining = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".vitreous-")]
    return {item.relative_to(folder).as_posix(): item.read_bytes() for item in remaining}


def test_all_of_it_comes_out_again_and_goes_on(done: Path, tmp_path: Path) -> None:
    file = pack(done, tmp_path / "run.zip")
    unpack(file, tmp_path / "there")
    assert files(tmp_path / "there") == files(done)
    assert bench(tiny(), tmp_path / "there").open_units() == []


def test_scores_alone_are_enough_for_a_table(done: Path, tmp_path: Path) -> None:
    file = pack(done, tmp_path / "run.zip", maps=False)
    store = unpack(file, tmp_path / "there")
    assert 0 < len(store.finished()) < len(Store.open(done).finished())
    (here,), (there,) = collect(Store.open(done)), collect(store)
    for name in ("raw_attention", "rollout"):
        assert there.table[name, METRICS[0]].tolist() == here.table[name, METRICS[0]].tolist()


def test_what_is_there_stays_and_what_is_missing_is_added(done: Path, tmp_path: Path) -> None:
    file, place = pack(done, tmp_path / "run.zip"), tmp_path / "there"
    unpack(file, place)
    first, second, *_ = sorted((place / "units").glob("*.npz"))
    first.unlink()
    before = second.stat()
    unpack(file, place)
    assert files(place) == files(done)
    assert (second.stat().st_mtime_ns, second.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_another_run_is_not_mixed_in(done: Path, tmp_path: Path) -> None:
    file, other = pack(done, tmp_path / "run.zip"), tmp_path / "other"
    ran(tiny(images=2), other)
    held = files(other)
    with pytest.raises(VitreousError, match="is another run"):
        unpack(file, other)
    assert files(other) == held


def test_a_folder_of_something_else_is_left_alone(done: Path, tmp_path: Path) -> None:
    file = pack(done, tmp_path / "run.zip")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.txt").write_text("mine")
    with pytest.raises(VitreousError, match="no run of ours"):
        unpack(file, tmp_path / "there")
    assert files(tmp_path / "there") == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("name", ["../away.json", "/away.json", "units/../../away.npz", "units/zz.npz", "notes.txt"])
def test_nothing_else_gets_in(name: str, done: Path, tmp_path: Path) -> None:
    file = pack(done, tmp_path / "run.zip")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, b"{}")
    with pytest.raises(VitreousError, match="no packed run"):
        unpack(file, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_what_is_damaged_is_refused(done: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.zip"
    for content, outcome in ((b"", "cannot be unpacked"), (b"PK" + bytes(50), "cannot be unpacked")):
        file.write_bytes(content)
        with pytest.raises(VitreousError, match=outcome):
            unpack(file, tmp_path / "there")
    with pytest.raises(VitreousError, match="cannot be unpacked"):
        unpack(tmp_path / "nowhere.zip", tmp_path / "there")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("run.json", json.dumps(Store.open(done).manifest()))
        archive.writestr(f"units/{'0' * 32}.npz", b"cut short")
    with pytest.raises(VitreousError, match="cannot be unpacked"):
        unpack(file, tmp_path / "there")


def test_a_file_that_is_there_is_not_replaced(done: Path, tmp_path: Path) -> None:
    (tmp_path / "run.zip").write_text("mine")
    with pytest.raises(VitreousError):
        pack(done, tmp_path / "run.zip")
    assert (tmp_path / "run.zip").read_text() == "mine"
