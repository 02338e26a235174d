"""Runs from anybody: what they say is data, nothing beside them is touched, no unit is lost, errors are lines."""

from __future__ import annotations

import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import run as command
from run_mutants import PLAN, contents, first_unit, renumber, repacked, resume, words, write, zipped
from tiny_benchmark import TOML, assert_same, bench, tiny
from vitreous.benchmark.executors import run as work
from vitreous.benchmark.pack import pack, unpack
from vitreous.benchmark.protocol import DataSpec, ModelSpec
from vitreous.benchmark.report import report
from vitreous.benchmark.store import Store, status
from vitreous.benchmark.unit_file import unpack_unit
from vitreous.errors import VitreousError, VitreousWarning

# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../victim/precious", "{tmp}/victim/precious", "A" * 32, "0" * 31, "", "0" * 32])
def test_a_unit_is_named_by_the_digest_of_its_content(run: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious.npz").write_bytes(b"mine")
    plan = words(run, PLAN)
    first_unit(run).unlink()
    plan["units"][0]["id"] = name.replace("{tmp}", str(tmp_path))
    write(run, PLAN, plan)
    (tmp_path / "run.zip").write_bytes(zipped(contents(run)))
    with pytest.raises(VitreousError, match=r"units\[0\]\.id = .* digest"):
        unpack(tmp_path / "run.zip", tmp_path / "there")
    for act in (status, lambda store: resume(store.path), lambda store: pack(store.path, tmp_path / "other.zip")):
        with pytest.raises(VitreousError, match=r"0001\.json: units\[0\]\.id = .* digest"):
            act(Store(run))
    assert (victim / "precious.npz").read_bytes() == b"mine"
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda plan: plan.update(replaces=["../../victim"]), r"replaces\[0\] = .* is no digest"),
        (lambda plan: plan["units"][0].update(config=99), r"units\[0\]\.config = 99: there are 1 configs"),
        (lambda plan: plan["units"][0]["images"].append("../../victim"), r"units\[0\]\.images = .* digests"),
        (lambda plan: plan["units"][0]["methods"].append("other"), r"units\[0\]\.methods = 'other': is not among"),
        (lambda plan: plan["units"][0].update(seed=7), r"units\[0\]\.id = .* is not the digest of its content"),
        (
            lambda plan: plan["configs"][0].update(tie_breaking="odd"),
            r"configs\[0\]\.tie_breaking = 'odd': is not one of",
        ),
        (lambda plan: plan["configs"][0].update(threads=10**9), r"configs\[0\]\.threads = 1000000000: must be from"),
        (lambda plan: plan.update(names={}), r"units\[0\]\.images = .* has no name"),
        (lambda plan: plan.update(revision=2), r"says that it is plan 2"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(run: Path, change: Any, complaint: str) -> None:
    plan = words(run, PLAN)
    change(plan)
    write(run, PLAN, plan)
    with pytest.raises(VitreousError, match=complaint):
        Store(run).plans()


def test_no_plan_may_be_missing(run: Path) -> None:
    (run / PLAN).rename(run / "plans" / "0003.json")
    with pytest.raises(VitreousError, match=r"0003\.json is plan file 1"):
        resume(run)


def test_links_in_a_run_do_not_lead_what_is_written_elsewhere(run: Path, tmp_path: Path) -> None:
    file, away = first_unit(run), tmp_path / "away.npz"
    shutil.move(file, tmp_path / "unit.npz")
    file.symlink_to(away)
    with pytest.raises(VitreousError, match="it is a link that leads nowhere"):
        resume(run)
    assert not away.exists()
    note = run / "failures" / f"{file.stem}.json"
    note.parent.mkdir()
    away.write_text('{"tries": []}')
    note.symlink_to(away)
    Store(run).note_failure(file.stem, "once")
    assert away.read_text() == '{"tries": []}'


# -- content -----------------------------------------------------------------------------------------------


def test_a_file_under_the_name_of_another_unit_does_not_count(run: Path, original: Path) -> None:
    maps, scores = (run / "units" / f"{unit['id']}.npz" for unit in words(run, PLAN)["units"])
    shutil.copy(maps, scores)
    assert Store(run).read(scores.stem) is None
    assert Store(run).info(scores.stem) is None
    assert status(Store(run)).damaged == (scores.stem,)
    with pytest.warns(
        VitreousWarning, match=rf"{scores.stem}\.npz is damaged and made again: it holds the unit {maps.stem}"
    ):
        resume(run)
    assert_same(run, original)


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_of_the_compression_method_is_damage(run: Path, original: Path, seed: int) -> None:
    file = first_unit(run)
    content = bytearray(file.read_bytes())
    at = content.rindex(b"PK\1\2") + 10  # of the last member in the table of contents
    content[at + seed // 8] ^= 1 << seed
    file.write_bytes(content)
    assert Store(run).read(file.stem) is None
    with pytest.warns(VitreousWarning, match="is damaged and made again"):
        resume(run)
    assert_same(run, original)


def bomb(size: int) -> bytes:
    """A unit whose array unfolds to many bytes."""
    import io

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("info.json.npy", b"")
        with archive.open("maps/0.npy", "w") as member:
            for _ in range(size // 2**20):
                member.write(bytes(2**20))
    return out.getvalue()


def test_what_would_unfold_to_much_more_is_refused_before_it_does(run: Path, tmp_path: Path) -> None:
    members = {**contents(run), f"units/{first_unit(run).stem}.npz": bomb(2**26)}
    (tmp_path / "run.zip").write_bytes(zipped(members))
    with pytest.raises(VitreousError, match=r"cannot be unpacked: .* is compressed, which units are not"):
        unpack(tmp_path / "run.zip", tmp_path / "there")
    members[f"units/{first_unit(run).stem}.npz"] = bytes(2**28)
    (tmp_path / "run.zip").write_bytes(zipped(members, compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(VitreousError, match=r"would unfold to \d+ bytes, which is more than 100 times its size"):
        unpack(tmp_path / "run.zip", tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert not list(tmp_path.glob(".vitreous-*"))


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 0, 2**40), (-1, 2), (1,) * 90, (10**30, 10**30)])
def test_the_shape_that_an_array_promises_is_not_believed(run: Path, shape: tuple[int, ...]) -> None:
    file = first_unit(run)
    arrays, description = unpack_unit(file.read_bytes())
    repacked(file, arrays, description)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    members["maps/0.npy"] = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header
    file.write_bytes(zipped(members))
    assert Store(run).read(file.stem) is None
    assert Store(run).read_arrays(file.stem, ["maps/0"]) is None


def test_members_that_lie_over_each_other_are_refused(run: Path) -> None:
    """Every entry of the table of contents names the same bytes: a file of any size in a small one."""
    file = first_unit(run)
    content = zipped({"a.npy": bytes(5000)})
    start = content.index(b"PK\1\2")
    end = content.index(b"PK\5\6")
    entry = content[start:end]
    entries = b"".join(entry.replace(b"a.npy", b"%c.npy" % (97 + n)) for n in range(20))
    tail = bytearray(content[end:])
    tail[8:10] = tail[10:12] = (20).to_bytes(2, "little")
    tail[12:16] = len(entries).to_bytes(4, "little")
    file.write_bytes(content[:start] + entries + bytes(tail))
    with warnings.catch_warnings(record=True) as outcome:
        warnings.simplefilter("always")
        resume(run)
    assert any("more than the file" in str(item.message) for item in outcome)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays, description: description.update(seconds="long"), "seconds = 'long': must be a number"),
        (
            lambda arrays, description: description.update(images=description["images"][:1]),
            "does not fit its 1 pictures",
        ),
        (
            lambda arrays, description: description.update(unreadable={"x" * 32: "why"}),
            "its pictures are not those of the unit",
        ),
        (
            lambda arrays, description: description["unit"].update(methods=["rollout"]),
            "other pictures, methods or metrics",
        ),
        (lambda arrays, description: arrays.pop("maps/0"), "it lacks maps/0"),
        (
            lambda arrays, description: arrays.update({"rows/0/given": arrays["rows/0/given"] + 9}),
            "maps that are not there",
        ),
        (lambda arrays, description: arrays.update({"maps/0": np.array(["text"])}), "holds no numbers"),
    ],
)
def test_a_unit_must_be_what_was_planned(run: Path, original: Path, change: Any, reason: str) -> None:
    file = first_unit(run)
    arrays, description = unpack_unit(file.read_bytes())
    change(arrays, description)
    repacked(file, arrays, description)
    with pytest.warns(VitreousWarning, match=reason):
        resume(run)
    assert_same(run, original)


# -- code --------------------------------------------------------------------------------------------------


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A method in a module that says so when it is imported."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "trap_of_tests.py").write_text(
        "def explain(model, inputs, classes):\n    return inputs.sum(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.delitem(sys.modules, "trap_of_tests", raising=False)
    return "trap_of_tests:explain"


def imported() -> bool:
    return "trap_of_tests" in sys.modules


def test_a_plan_does_not_choose_what_is_imported(run: Path, tmp_path: Path, trap: str) -> None:
    """The row that the protocol names by a word is code in the plan, and nothing of it is done yet."""
    plan = words(run, PLAN)
    shutil.rmtree(run / "units")
    plan["configs"][0]["methods"]["rollout"] = trap
    write(run, PLAN, renumber(plan))
    with pytest.warns(VitreousWarning, match=f"left: {trap} is code to import, which this command does not name"):
        resume(run)
    status(Store(run))
    report(run)
    unpack(pack(run, tmp_path / "run.zip"), tmp_path / "there")
    assert not imported()


def test_the_manifest_of_a_run_does_not_choose_what_is_imported(run: Path, tmp_path: Path, trap: str) -> None:
    manifest = words(run, "run.json")
    manifest["wanted"]["protocol"]["methods"]["rollout"] = trap
    write(run, "run.json", manifest)
    plan = words(run, PLAN)
    plan["configs"][0]["methods"]["rollout"] = trap
    write(run, PLAN, renumber(plan, run))
    with pytest.raises(VitreousError, match=f"the run has the row rollout, which imports {trap}"):
        resume(run)
    assert status(Store(run)).done == 2
    assert report(run).results[0].table.methods == ("raw_attention", "rollout")
    unpack(pack(run, tmp_path / "run.zip"), tmp_path / "there")
    open_run = pytest.importorskip("vitreous.web.run_view")
    assert open_run.RunFolder(run).opened().parts
    assert not imported()


def test_a_run_goes_on_with_code_that_the_command_names(tmp_path: Path, trap: str) -> None:
    (tmp_path / "tiny.toml").write_text(TOML.format(images=2, steps=2, unit=2))
    start = ["bench", "run", tmp_path / "tiny.toml", "--out", tmp_path / "run", "--device", "cpu", "--workers", 1, "-q"]
    assert command(*start, "--method", f"+{trap}").code == 0
    assert imported()
    outcome = command(*start)
    assert outcome.code == 2
    assert f"--method '+{trap}'" in outcome.err.replace("\n", " ")
    assert command(*start, "--method", f"+{trap}").code == 0
    assert command(*start, f"--method=-{trap}").code == 0
    assert command(*start).code == 0


# -- other labels ------------------------------------------------------------------------------------------


def test_unfinished_units_of_another_model_are_left(tmp_path: Path) -> None:
    bench(tiny(images=2), tmp_path / "run")
    other = tiny(images=2, name="world-shortcut")
    from dataclasses import replace

    other = replace(other, models=(ModelSpec("second", "world-shortcut"),))
    with pytest.warns(VitreousWarning, match="2 unfinished units are left: the model world is not wanted now"):
        work(bench(other, tmp_path / "run"), workers=1)
    assert len(Store(tmp_path / "run").finished()) == 2


def test_unfinished_units_go_on_under_other_labels(tmp_path: Path, original: Path) -> None:
    from dataclasses import replace

    bench(tiny(images=2), tmp_path / "run")
    other = replace(
        tiny(images=2), models=(ModelSpec("second", "world"),), data=DataSpec("world", "scenes", images=2, split="test")
    )
    work(bench(other, tmp_path / "run"), workers=1)
    assert_same(tmp_path / "run", original)


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--checkpoint", "wrold={tmp}/weights.pt", "has no model 'wrold'; there is world; did you mean world?"),
        ("--data", "scenes={tmp}", "has no data set 'scenes', only one without a label: give --data PATH"),
    ],
)
@pytest.mark.parametrize("word", ["run", "reproduce"])
def test_labels_that_nothing_has_are_refused(
    tmp_path: Path, word: str, option: str, value: str, complaint: str
) -> None:
    cell = '[[published]]\nmetric = "deletion(steps=2)"\nmodel = "world"\nmethod = "saliency"\nvalue = 1.0\n'
    (tmp_path / "tiny.toml").write_text(TOML.format(images=2, steps=2, unit=2) + cell)
    start = ["bench", "run"] if word == "run" else ["reproduce"]
    outcome = command(*start, tmp_path / "tiny.toml", "--out", tmp_path / "run", option, value.format(tmp=tmp_path))
    assert outcome.code == 2
    assert complaint in outcome.err.replace("\n", " ")
    assert not (tmp_path / "run").exists()
