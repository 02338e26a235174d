"""Runs from anybody: what they say is data, nothing beside them is touched, no unit is lost, errors are lines."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_mutants import mutant, renumber, repacked, words, write, zipped
from bench_tiny import TOML, assert_same, bench, copied, of_folder, photos, ran, tiny
from commands import run as command
from vitreous.bench.changes import Changes, refuse_unnamed_code, resume_protocol
from vitreous.bench.engines import run as work
from vitreous.bench.engines.progress import status
from vitreous.bench.pack import pack, unpack
from vitreous.bench.protocol import DataSpec, ModelSpec
from vitreous.bench.report import report
from vitreous.bench.store import Store, unpacked
from vitreous.errors import VitreousError, VitreousWarning

PLAN = "plans/0001.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("original") / "run"
    ran(tiny(images=2), out)
    return out


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A finished run of one's own, of two units."""
    return copied(original, tmp_path / "run")


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run as members of a packed one."""
    files = [each for each in sorted(run.rglob("*")) if each.is_file() and not each.name.startswith(".vitreous-")]
    return {each.relative_to(run).as_posix(): each.read_bytes() for each in files}


def names(folder: Path) -> list[str]:
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*"))


def first_unit(run: Path) -> Path:
    return run / "units" / f"{words(run, PLAN)['units'][0]['id']}.npz"


def resume(run: Path, **more: Any) -> None:
    """Go on with a run by its protocol, as the command does."""
    manifest = Store(run).manifest()
    assert manifest is not None
    named = tiny(images=2, **more)
    protocol, _ = resume_protocol(named, manifest["wanted"])
    refuse_unnamed_code(protocol, named, Changes())
    work(bench(protocol, run), workers=1)


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
        (lambda plan: plan["units"][0].update(setting=99), r"units\[0\]\.setting = 99: there are 1 settings"),
        (lambda plan: plan["units"][0]["pictures"].append("../../victim"), r"units\[0\]\.pictures = .* digests"),
        (lambda plan: plan["units"][0]["methods"].append("other"), r"units\[0\]\.methods = 'other': is not among"),
        (lambda plan: plan["units"][0].update(seed=7), r"units\[0\]\.id = .* is not the digest of its content"),
        (lambda plan: plan["settings"][0].update(ties="odd"), r"settings\[0\]\.ties = 'odd': is not one of"),
        (lambda plan: plan["settings"][0].update(threads=10**9), r"settings\[0\]\.threads = 1000000000: must be from"),
        (lambda plan: plan.update(names={}), r"units\[0\]\.pictures = .* has no name"),
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
    assert Store(run).said(scores.stem) is None
    assert status(Store(run)).broken == (scores.stem,)
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
        archive.writestr("said.json.npy", b"")
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
    arrays, said = unpacked(file.read_bytes())
    repacked(file, arrays, said)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    members["maps/0.npy"] = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header
    file.write_bytes(zipped(members))
    assert Store(run).read(file.stem) is None
    assert Store(run).some(file.stem, ["maps/0"]) is None


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
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resume(run)
    assert any("more than the file" in str(each.message) for each in told)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays, said: said.update(seconds="long"), "seconds = 'long': must be a number"),
        (lambda arrays, said: said.update(pictures=said["pictures"][:1]), "does not fit its 1 pictures"),
        (lambda arrays, said: said.update(unreadable={"x" * 32: "why"}), "its pictures are not those of the unit"),
        (lambda arrays, said: said["unit"].update(methods=["rollout"]), "other pictures, methods or metrics"),
        (lambda arrays, said: arrays.pop("maps/0"), "it lacks maps/0"),
        (lambda arrays, said: arrays.update({"rows/0/given": arrays["rows/0/given"] + 9}), "maps that are not there"),
        (lambda arrays, said: arrays.update({"maps/0": np.array(["text"])}), "holds no numbers"),
    ],
)
def test_a_unit_must_be_what_was_planned(run: Path, original: Path, change: Any, reason: str) -> None:
    file = first_unit(run)
    arrays, said = unpacked(file.read_bytes())
    change(arrays, said)
    repacked(file, arrays, said)
    with pytest.warns(VitreousWarning, match=reason):
        resume(run)
    assert_same(run, original)


# -- files that cannot be opened ---------------------------------------------------------------------------


def test_a_unit_that_cannot_be_opened_is_not_taken_for_damage(run: Path) -> None:
    file = first_unit(run)
    shutil.move(file, run / "kept.npz")
    file.mkdir()
    for act in (lambda: resume(run), lambda: status(Store(run)), lambda: pack(run, run.parent / "run.zip")):
        with pytest.raises(VitreousError, match=rf"{file.name} cannot be read: it is a folder"):
            act()
    assert file.is_dir()


def test_a_broken_disk_is_not_taken_for_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    file = first_unit(run)

    class Broken(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def readall(self) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        from vitreous.disk import read as reading

        real = io.BufferedReader

        class Reader:
            BufferedReader = staticmethod(lambda raw: real(raw))
            FileIO = staticmethod(lambda handle, mode: Broken(handle, mode))

        patched.setattr(reading, "io", Reader)
        store = Store(run)
        for act in (store.mend, lambda: store.said(file.stem)):
            with pytest.raises(VitreousError, match=r"cannot be read: Input/output error"):
                act()
    assert Store(run).read(file.stem) is not None


def of_photos(folder: Path) -> str:
    return TOML.replace('source = "world"\nsplit = "test"\nimages = {images}', f'source = "folder"\npath = "{folder}"')


def as_nobody(*arguments: Any) -> tuple[int, str]:
    """Run a command in a copy of this process that belongs to somebody else; what it imports is imported already."""
    ends = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(65534)
            os.setuid(65534)
            told = command(*arguments)
            os.write(ends[1], f"{told.code} {told.err}".encode())
        except BaseException as error:
            os.write(ends[1], f"1 {error!r}".encode())
        finally:
            os._exit(0)
    os.close(ends[1])
    with open(ends[0], "rb") as file:
        code, _, text = file.read().decode().partition(" ")
    os.waitpid(child, 0)
    return int(code), text.replace("\n", " ")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be somebody else")
def test_files_of_another_user_stay(run: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "tiny.toml").write_text(TOML.format(images=2, steps=2, unit=2))
        photos(folder / "photos", 1)
        shutil.copytree(run, folder / "run")
        file = folder / "run" / "units" / first_unit(run).name
        start = ["bench", "run", folder / "tiny.toml", "--device", "cpu", "--workers", 1, "-q", "--out"]
        own = ["bench", "run", folder / "own.toml", "--device", "cpu", "--workers", 1, "-q", "--out"]
        text = of_photos(folder / "photos").format(steps=2, unit=2)
        (folder / "own.toml").write_text(text)
        acts = [
            ("bench", "status", folder / "run"),
            ("bench", "pack", folder / "run", folder / "run.zip", "--overwrite"),
            (*start, folder / "run"),
            (*own, folder / "own"),
            ("explain", "--model", "world", folder / "photos", "--out", folder / "e", "--device", "cpu"),
        ]
        for arguments in acts:
            assert command(*arguments).code == 0
        shutil.rmtree(folder / "run")
        shutil.rmtree(folder / "e")
        shutil.rmtree(folder / "own")
        shutil.copytree(run, folder / "run")
        for each in (folder, *folder.rglob("*")):
            each.chmod(0o777)
        file.chmod(0o600)
        (folder / "photos").chmod(0o700)
        content = file.read_bytes()
        for arguments in acts:
            code, text = as_nobody(*arguments)
            assert code == 2, text
            assert "cannot be read: Permission denied" in text or "is not readable" in text
        (folder / "photos").chmod(0o744)  # its names can be read, its files cannot
        code, text = as_nobody(*acts[-1])
        assert code == 2, text
        assert "Permission denied" in text
        assert file.read_bytes() == content


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
    plan["settings"][0]["methods"]["rollout"] = trap
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
    plan["settings"][0]["methods"]["rollout"] = trap
    write(run, PLAN, renumber(plan, run))
    with pytest.raises(VitreousError, match=f"the run has the row rollout, which imports {trap}"):
        resume(run)
    assert status(Store(run)).done == 2
    assert report(run).findings[0].table.methods == ("raw_attention", "rollout")
    unpack(pack(run, tmp_path / "run.zip"), tmp_path / "there")
    open_run = pytest.importorskip("vitreous.explorer.runs_open")
    assert open_run.Run(run).opened().parts
    assert not imported()


def test_a_run_goes_on_with_code_that_the_command_names(tmp_path: Path, trap: str) -> None:
    (tmp_path / "tiny.toml").write_text(TOML.format(images=2, steps=2, unit=2))
    start = ["bench", "run", tmp_path / "tiny.toml", "--out", tmp_path / "run", "--device", "cpu", "--workers", 1, "-q"]
    assert command(*start, "--method", f"+{trap}").code == 0
    assert imported()
    told = command(*start)
    assert told.code == 2
    assert f"--method '+{trap}'" in told.err.replace("\n", " ")
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
    told = command(*start, tmp_path / "tiny.toml", "--out", tmp_path / "run", option, value.format(tmp=tmp_path))
    assert told.code == 2
    assert complaint in told.err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


# -- files that are none -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_among_pictures_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos", 3)
    monkeypatch.chdir(folder)  # names of sockets are short
    os.mkfifo("0000-pipe.png")
    Path("0001-device.png").symlink_to("/dev/full")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("0002-socket.png")
    store = ran(of_folder(folder), tmp_path / "run")
    found = status(store)
    assert sorted(found.unreadable) == ["0000-pipe.png", "0001-device.png", "0002-socket.png"]
    assert [why for why in found.unreadable.values() if "is not a file" not in why] == []
    for way in (
        ["explain", "--model", "world", folder, "--out", tmp_path / "e"],
        ["evaluate", "--model", "world", folder, "--method", "rollout"],
    ):
        told = command(*way, "--device", "cpu")
        assert told.code in (0, 2)
        assert "Traceback" not in told.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["run.json", PLAN, "unit", "failure"])
def test_a_pipe_in_a_run_is_one_line(run: Path, name: str) -> None:
    unit = first_unit(run)
    file = {"unit": unit, "failure": run / "failures" / f"{unit.stem}.json"}.get(name, run / name)
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    with pytest.raises(VitreousError, match=rf"{file.name} cannot be read: it is a pipe"):
        status(Store.open(run))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_packed_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.zip")
    with pytest.raises(VitreousError, match=r"cannot be unpacked: it is a pipe"):
        unpack(tmp_path / "run.zip", tmp_path / "there")


def test_a_run_of_which_no_picture_can_be_read_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.png").write_bytes(b"no picture")
    (tmp_path / "tiny.toml").write_text(of_photos(folder).format(steps=2, unit=2))
    told = command("bench", "run", tmp_path / "tiny.toml", "--out", tmp_path / "run", "--device", "cpu", "--workers", 1)
    assert told.code == 2
    assert "none of the 2 pictures of folder can be read" in told.err.replace("\n", " ")
    for way in (
        ["explain", "--model", "world", folder, "--out", tmp_path / "e"],
        ["evaluate", "--model", "world", folder, "--method", "rollout"],
    ):
        told = command(*way, "--device", "cpu")
        assert told.code == 2
        assert told.err.count("error:") == 1


# -- packed runs -------------------------------------------------------------------------------------------


def test_a_failed_unpack_leaves_nothing(run: Path, tmp_path: Path) -> None:
    members = contents(run)
    last = sorted(members)[-1]
    (tmp_path / "run.zip").write_bytes(zipped({**members, last: members[last][:-200]}))
    with pytest.raises(VitreousError, match="is damaged"):
        unpack(tmp_path / "run.zip", tmp_path / "deep" / "there")
    assert not (tmp_path / "deep").exists()
    part = copied(run, tmp_path / "part")
    for file in (part / "units").glob("*.npz"):
        file.unlink()
    before = names(part)
    with pytest.raises(VitreousError, match="is damaged"):
        unpack(tmp_path / "run.zip", part)
    assert names(part) == before


def test_a_damaged_unit_is_mended_by_a_packed_run_and_not_packed(run: Path, original: Path, tmp_path: Path) -> None:
    first_unit(run).write_bytes(b"cut short")
    unpack(pack(run, tmp_path / "part.zip"), tmp_path / "part")
    assert len(Store(tmp_path / "part").finished()) == 1
    unpack(pack(original, tmp_path / "run.zip"), run)
    assert_same(run, original)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"null", b"[]", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"1" * 5000, b"NaN"),
        *(
            b'{"schema": "vitreous.run/1"}',
            b'{"schema": "vitreous.run/1", "wanted": []}',
            b"[" + b"[]," * 2**21 + b"[]]",
        ),
    ],
)
@pytest.mark.parametrize("name", ["run.json", PLAN, "failures/" + "0" * 32 + ".json"])
def test_files_of_odd_shapes_are_one_line_that_names_them(run: Path, name: str, content: bytes) -> None:
    (run / "failures").mkdir()
    (run / name).write_bytes(content)
    with pytest.raises(VitreousError, match=Path(name).name) as told:
        status(Store.open(run))
    assert len(str(told.value)) < 700
    assert str(told.value).isprintable()


def test_a_manifest_without_a_protocol_is_one_line(run: Path) -> None:
    write(run, "run.json", {"schema": "vitreous.run/1", "wanted": {}})
    with pytest.raises(VitreousError, match=r"run\.json: wanted\.protocol is missing"):
        report(run)
    assert command("bench", "run", "--out", run, "vit-cx").code == 2


def test_no_mutant_of_a_run_is_a_traceback(original: Path, tmp_path: Path) -> None:
    """Whatever is changed in a run, every command works or says in a line why not."""
    refused, odd = 0, list[str]()
    for seed in range(1000, 1030):
        out = tmp_path / str(seed)
        what = mutant(original, out, seed)
        acts = [lambda: status(Store.open(out)), lambda: pack(out, tmp_path / f"{seed}.zip"), lambda: resume(out)]  # noqa: B023
        acts += [lambda: unpack(tmp_path / f"{seed}.zip", tmp_path / f"{seed}-there")]  # noqa: B023
        acts += [lambda: report(out)] if seed % 4 == 0 else []  # noqa: B023
        for act in acts:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", VitreousWarning)
                    act()
            except VitreousError as error:
                refused += 1
                odd += [] if str(error).isprintable() else [f"{what}: {error!r}"]
            except Exception as error:
                raise AssertionError(what) from error
        shutil.rmtree(out)
    assert odd == []
    assert refused > 10
