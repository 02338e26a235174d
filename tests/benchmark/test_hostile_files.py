"""Files of a run that are none, cannot be opened or have an odd shape: one line for each, and nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from commands import run as command
from run_mutants import PLAN, contents, first_unit, mutant, names, resume, write, zipped
from tiny_benchmark import TOML, assert_same, copied, of_folder, photos, ran
from vitreous.benchmark.pack import pack, unpack
from vitreous.benchmark.report import report
from vitreous.benchmark.store import Store, status
from vitreous.errors import VitreousError, VitreousWarning

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
        from vitreous.io import atomic

        real = io.BufferedReader

        class Reader:
            BufferedReader = staticmethod(lambda raw: real(raw))
            FileIO = staticmethod(lambda handle, mode: Broken(handle, mode))

        patched.setattr(atomic, "io", Reader)
        store = Store(run)
        for act in (store.mend, lambda: store.info(file.stem)):
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
            outcome = command(*arguments)
            os.write(ends[1], f"{outcome.code} {outcome.err}".encode())
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
        for item in (folder, *folder.rglob("*")):
            item.chmod(0o777)
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


# -- files that are none -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_among_pictures_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "photos", 3)
    monkeypatch.chdir(folder)  # names of sockets are short
    os.mkfifo("0000-pipe.png")
    Path("0001-device.png").symlink_to("/dev/full")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("0002-socket.png")
    store = ran(of_folder(folder), tmp_path / "run")
    result = status(store)
    assert sorted(result.unreadable) == ["0000-pipe.png", "0001-device.png", "0002-socket.png"]
    assert [why for why in result.unreadable.values() if "is not a file" not in why] == []
    for way in (
        ["explain", "--model", "world", folder, "--method", "gradient", "--out", tmp_path / "e"],
        ["evaluate", "--model", "world", folder, "--method", "rollout", "--metric", "gini"],
    ):
        outcome = command(*way, "--device", "cpu")
        assert outcome.code in (0, 2)
        assert "Traceback" not in outcome.err


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
    outcome = command(
        "bench", "run", tmp_path / "tiny.toml", "--out", tmp_path / "run", "--device", "cpu", "--workers", 1
    )
    assert outcome.code == 2
    assert "none of the 2 pictures of folder can be read" in outcome.err.replace("\n", " ")
    for way in (
        ["explain", "--model", "world", folder, "--method", "gradient", "--out", tmp_path / "e"],
        ["evaluate", "--model", "world", folder, "--method", "rollout", "--metric", "gini"],
    ):
        outcome = command(*way, "--device", "cpu")
        assert outcome.code == 2
        assert outcome.err.count("error:") == 1


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
    with pytest.raises(VitreousError, match=Path(name).name) as outcome:
        status(Store.open(run))
    assert len(str(outcome.value)) < 700
    assert str(outcome.value).isprintable()


def test_a_manifest_without_a_protocol_is_one_line(run: Path) -> None:
    write(run, "run.json", {"schema": "vitreous.run/1", "wanted": {}})
    with pytest.raises(VitreousError, match=r"run\.json: wanted\.protocol is missing"):
        report(run)
    assert command("bench", "run", "--out", run, "vit-cx").code == 2


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_no_mutant_of_a_run_is_a_traceback(original: Path, tmp_path: Path, count: int) -> None:
    """Whatever is changed in a run, every command works or says in a line why not."""
    refused, odd = 0, list[str]()
    for seed in range(1000, 1000 + count):
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
    assert refused > count // 3
