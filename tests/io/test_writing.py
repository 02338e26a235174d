"""The one module that writes: names, drafts, locks, refusals. Deaths and second writers are in hostile/."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitreous
from vitreous import io as disk
from vitreous.errors import VitreousError

SCHEMA = {"schema": "vitreous.test/1"}


def put(place: Path, text: str = "hello", *, overwrite: bool = False) -> Path:
    with disk.folder(place, overwrite=overwrite) as draft:
        draft.write("a.txt", text.encode())
        draft.finish(SCHEMA)
    return place


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- names -------------------------------------------------------------------------------------------------------------


@given(st.text())
def test_a_safe_name_is_safe_whatever_the_text(text: str) -> None:
    name = disk.safe_name(text)
    assert name not in ("", ".", "..")
    assert not {"/", "\\", "\0"} & set(name)
    assert name.isprintable()
    assert len(name.encode()) <= 200
    assert name == name.strip(" .")
    assert disk.safe_name(name) == name
    assert Path("x", name).parent == Path("x")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("photo", "photo"),
        ("..", "image"),
        ("...", "image"),
        ("", "image"),
        (" . ", "image"),
        ("a/../b", "a-..-b"),
        ("tab\there", "tab-here"),
        ("nul", "_nul"),
        ("CON.old", "_CON.old"),
        ("Käse 3", "Käse 3"),
        ("\udcff", "image"),
        (".hidden", "hidden"),
    ],
)
def test_safe_names(text: str, name: str) -> None:
    assert disk.safe_name(text) == name


def test_long_names_are_cut_and_stay_apart() -> None:
    one, other = disk.safe_name("é" * 300 + "1"), disk.safe_name("é" * 300 + "2")
    assert one != other
    assert one[:80] == other[:80] == "é" * 80


def test_slugs_are_for_people() -> None:
    assert disk.slug("logprob(plus(decompx))") == "logprob-plus-decompx"
    assert disk.slug("tiger cat") == "tiger-cat"
    assert disk.slug("coiba(steps=5, lr=0.5)") == "coiba-steps=5-lr=0.5"
    assert disk.slug("  ") == "none"


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_whole_and_lists_its_files(tmp_path: Path) -> None:
    place = put(tmp_path / "deep" / "er")
    assert sorted(os.listdir(place)) == ["a.txt", "manifest.json"]
    assert json.loads((place / "manifest.json").read_text()) == {**SCHEMA, "files": ["a.txt", "manifest.json"]}
    assert disk.manifest_of(place) is not None
    assert disk.unlisted_files(place) == []
    assert os.listdir(tmp_path / "deep") == ["er"]


def test_nothing_is_replaced_unasked_and_all_of_it_when_asked(tmp_path: Path) -> None:
    place = put(tmp_path / "r")
    with pytest.raises(VitreousError, match="is there already"):
        put(place, "other")
    assert (place / "a.txt").read_text() == "hello"
    put(place, "other", overwrite=True)
    assert (place / "a.txt").read_text() == "other"
    assert os.listdir(tmp_path) == ["r"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_ours_is_never_removed(tmp_path: Path, overwrite: bool) -> None:
    other_writer = tmp_path / "theirs"
    other_writer.mkdir()
    (other_writer / "thesis.tex").write_text("three years")
    mixed = put(tmp_path / "mixed")
    (mixed / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("a file")
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "manifest.json").write_text('{"schema": "other.tool/1"}')
    before = tree(tmp_path)
    for name in ("theirs", "mixed", "file", "fake"):
        with pytest.raises(VitreousError, match=name):
            put(tmp_path / name, overwrite=overwrite)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("path", ["new/..", "..", ".", "", "/", "a/../.."])
def test_a_path_that_names_nothing_new_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "work" / "new").mkdir(parents=True)
    (tmp_path / "work" / "thesis.tex").write_text("three years")
    monkeypatch.chdir(tmp_path / "work")
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(VitreousError, match="not the name of something new"):
            put(Path(path) if path else Path(), overwrite=overwrite)
        with pytest.raises(VitreousError, match="not the name of something new"):
            disk.write_file(path, b"", overwrite=overwrite)
    assert tree(tmp_path) == before


def test_an_empty_folder_is_free_and_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    put(tmp_path / "empty")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "r")
    put(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    put(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "elsewhere" / "r" / "a.txt").read_text() == "new"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_failed_overwrite_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr("vitreous.io.atomic._exchanged", lambda one, other: False)
    place = put(tmp_path / "r")

    def fill() -> None:
        with disk.folder(place, overwrite=True) as draft:
            draft.write("a.txt", b"half")
            raise error

    with pytest.raises(VitreousError if isinstance(error, OSError) else type(error)):
        fill()
    assert (place / "a.txt").read_text() == "hello"
    assert os.listdir(tmp_path) == ["r"]


def test_a_draft_without_a_manifest_is_not_published(tmp_path: Path) -> None:
    def unfinished() -> None:
        with disk.folder(tmp_path / "deep" / "r") as draft:
            draft.write("a.txt", b"")

    with pytest.raises(VitreousError, match="was not finished"):
        unfinished()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """Nor a device: a program of root could exchange it for a file, for everybody."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        for write in (
            lambda path: disk.write_file(path, b"x", overwrite=True),
            lambda path: disk.check_file(path, True),
        ):
            with pytest.raises(VitreousError, match="it is no regular file, and not replaced by one"):
                write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "twice"])
def test_files_of_a_draft_stay_inside_it(tmp_path: Path, name: str) -> None:
    def fill() -> None:
        with disk.folder(tmp_path / "r") as draft:
            draft.write("twice", b"")
            draft.write(name, b"")

    with pytest.raises(VitreousError, match="is no name for a new file"):
        fill()


# -- files and places --------------------------------------------------------------------------------------------------


def test_files_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.json"
    disk.write_file(path, b"one")
    with pytest.raises(VitreousError, match="is there already"):
        disk.write_file(path, b"two")

    def breaks(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(VitreousError, match="No space left"):
        disk.write_file(path, breaks, overwrite=True)
    assert path.read_bytes() == b"one"
    disk.write_file(path, lambda file: file.write(b"three"), overwrite=True)
    assert path.read_bytes() == b"three"
    assert os.listdir(path.parent) == ["t.json"]
    with pytest.raises(VitreousError, match="it is a folder"):
        disk.write_file(path.parent, b"", overwrite=True)


def test_places_are_checked_before_the_work_and_left_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = sorted(os.listdir(tmp_path))
    disk.check_file(tmp_path / "new" / "deep" / "t.json")
    disk.check_folder(tmp_path / "new" / "deep")
    for check in (disk.check_file, disk.check_folder):
        for bad in (tmp_path / "file" / "x", tmp_path / ("x" * 300), tmp_path / "a\0b"):
            with pytest.raises(VitreousError, match="could not write"):
                check(bad)
    assert sorted(os.listdir(tmp_path)) == before


_CHANGES = {"mkdir", "makedirs", "rmtree", "unlink", "rename", "rmdir", "write_text", "write_bytes", "save_file",
            "touch", "symlink_to", "copytree", "copyfile"}  # fmt: skip


def _writes(node: ast.Call) -> bool:
    called = node.func
    if isinstance(called, ast.Attribute):
        owner = called.value.id if isinstance(called.value, ast.Name) else ""
        return called.attr in _CHANGES or (called.attr in ("replace", "move") and owner in ("os", "shutil"))
    modes = [str(arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
    if ast.unparse(node).startswith("open(os.devnull"):
        return False  # nothing is written there
    return isinstance(called, ast.Name) and called.id == "open" and any(set(mode) & set("wax+") for mode in modes)


def test_only_disk_writes() -> None:
    """No other module opens a file for writing, or makes, moves or removes anything."""
    result = [
        f"{path.name}:{node.lineno}"
        for path in sorted(Path(vitreous.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if path.parent.name != "io" and isinstance(node, ast.Call) and _writes(node)
    ]
    assert result == []
