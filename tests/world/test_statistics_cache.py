"""The cache of the world's statistics: used when it is right, never when it is not, and never in the way."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous as vt
from commands import MODEL, photographs, run
from families import FAMILIES
from statistics_cache import SCRIPT, TESTS, explained, only
from vitreous import io as disk
from vitreous.code_digest import sources
from vitreous.errors import VitreousWarning
from vitreous.tracing import statistics_collect as scenes
from vitreous.tracing.statistics import ActivationStats
from vitreous.tracing.statistics_collect import SCENES, world_statistics


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing in memory, and a cache folder of its own that is not there yet."""
    scenes._cached.clear()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "deep" / "cache"))
    yield tmp_path / "deep" / "cache"
    scenes._cached.clear()


# -- where it is used --------------------------------------------------------------------------------------------------


def test_made_once_and_found_again(fresh: Path, ran: list[int]) -> None:
    model = FAMILIES["vit"]()
    first = explained(model)
    assert sum(ran) == SCENES
    assert torch.equal(explained(model, forget=False), first)
    written = ActivationStats.load(only(fresh))
    assert torch.equal(explained(model), first)
    assert torch.equal(explained(FAMILIES["vit"]()), first)  # the same weights
    assert sum(ran) == SCENES
    only(fresh).unlink()
    explained(model, forget=False)
    assert sum(ran) == SCENES
    assert torch.equal(explained(model), first)
    assert sum(ran) == 2 * SCENES
    assert ActivationStats.load(only(fresh)) == written


def test_a_name_is_nobody(ran: list[int]) -> None:
    """The same weights under another name share them; other weights under the same name do not."""
    model = FAMILIES["vit"]()
    first = explained(model)
    renamed = vt.wrap(FAMILIES["vit"]())
    renamed.name = "someone else"
    assert torch.equal(explained(renamed), first)
    assert world_statistics(renamed, (32, 32), "norm1").model == "someone else"
    assert sum(ran) == SCENES
    with torch.no_grad():
        model.blocks[0].norm1.weight[3] += 0.5
    explained(model, forget=False)
    assert sum(ran) == 2 * SCENES
    assert vt.wrap(model).name == vt.wrap(FAMILIES["vit"]()).name


def test_what_else_the_numbers_follow_from(fresh: Path, ran: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Precision, size, preprocessing, heads, the place, our version: each has a file of its own."""
    model = FAMILIES["vit"]()
    vision_model = vt.wrap(model)
    world_statistics(vision_model, (32, 32), "norm1")
    other = vt.wrap(FAMILIES["vit"](), preprocess=replace(vision_model.preprocess, mean=(0.5, 0.5, 0.5)))
    world_statistics(other, (32, 32), "norm1")
    world_statistics(vision_model, (32, 32), "resid_post")
    world_statistics(vt.wrap(FAMILIES["vit"]().double()), (32, 32), "norm1")
    cut = FAMILIES["vit"]()
    for block in cut.blocks:
        block.attn.num_heads, block.attn.head_dim = 2, 12
    world_statistics(vt.wrap(cut), (32, 32), "norm1")
    for name, value in (("__version__", "9.9"), ("VERSION", 99)):
        monkeypatch.setattr(scenes, name, value)
        world_statistics(vision_model, (32, 32), "norm1")
    assert len(list(fresh.iterdir())) == 7
    assert sum(ran) == 7 * SCENES


def test_hooks_and_patches_have_statistics_of_their_own(fresh: Path, ran: list[int]) -> None:
    model = FAMILIES["vit"]()
    simple = explained(model)
    handle = model.blocks[0].register_forward_hook(lambda module, args, out: out.flip(-1))
    flipped = explained(model)
    assert not torch.equal(flipped, simple)
    assert torch.equal(explained(model), flipped)
    assert sum(ran) == 2 * SCENES
    handle.remove()
    assert torch.equal(explained(model), simple)
    assert sum(ran) == 2 * SCENES
    model.blocks[0].mlp.forward = lambda tokens: -tokens
    assert not torch.equal(explained(model), simple)
    assert len(list(fresh.iterdir())) == 3


def test_statistics_of_code_that_cannot_be_known_stay_in_memory(
    fresh: Path, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_reported", set())
    model, lock = FAMILIES["vit"](), threading.Lock()

    def negated(tokens: Tensor) -> Tensor:
        return -tokens if lock else tokens

    model.blocks[0].mlp.forward = negated
    with pytest.warns(VitreousWarning, match="the code of your VisionTransformer cannot be known"):
        first = explained(model)
    assert torch.equal(explained(model, forget=False), first)
    assert sum(ran) == SCENES
    assert not fresh.exists() or not list(fresh.iterdir())


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", "")
    monkeypatch.setattr(scenes, "_MOST_CACHED", 2)
    for family in ("vit", "gap", "clip", "qk_norm"):
        world_statistics(vt.wrap(FAMILIES[family]()), (32, 32), "norm1")
    assert len(scenes._cached) == 2
    monkeypatch.setattr(scenes, "_MOST_BYTES", 10)
    world_statistics(vt.wrap(FAMILIES["vit"]()), (32, 32), "norm1")
    assert len(scenes._cached) == 1


# -- where it is not ---------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """One bit of one number, on the disk."""
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def other_weights(path: Path) -> None:
    """Statistics that are whole, of another model of the same kind."""
    model = FAMILIES["vit"]()
    with torch.no_grad():
        model.blocks[0].norm1.bias += 1
    built = world_statistics(vt.wrap(model), (32, 32), "norm1")
    path.unlink()
    built.save(path)
    assert ActivationStats.load(path).description == "world:64"


def claims_to_be_ours(path: Path) -> None:
    """The same, with this model's digest written into it."""
    builder = ActivationStats.load(path).model_digest
    other_weights(path)
    replace(ActivationStats.load(path), model_digest=builder).save(path, overwrite=True)


SPOILT: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"no statistics" * 100),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": flip,
    "other weights": other_weights,
    "lies": claims_to_be_ours,
    "another count": lambda path: replace(ActivationStats.load(path), count=63).save(path, overwrite=True),
    "another source": lambda path: replace(ActivationStats.load(path), source="noise").save(path, overwrite=True),
    "another size": lambda path: replace(ActivationStats.load(path), size=(32, 48)).save(path, overwrite=True),
    "no layers": lambda path: replace(ActivationStats.load(path), moments={}).save(path, overwrite=True),
}


@pytest.mark.parametrize("way", SPOILT)
def test_a_file_that_is_not_right_is_not_used(way: str, fresh: Path, ran: list[int]) -> None:
    model = FAMILIES["vit"]()
    first = explained(model)
    path = only(fresh)
    sealed, numbers = ActivationStats.load(path).images_digest, ActivationStats.load(path).fingerprint
    SPOILT[way](path)
    ran.clear()
    assert torch.equal(explained(model), first)
    assert sum(ran) == SCENES
    mended = ActivationStats.load(path)
    assert (mended.description, mended.images_digest, mended.fingerprint) == ("world:64", sealed, numbers)
    assert torch.equal(explained(model), first)
    assert sum(ran) == SCENES


@pytest.mark.parametrize("what", ["link", "dangling", "folder"])
def test_what_is_not_ours_is_left_alone(what: str, fresh: Path, ran: list[int], tmp_path: Path) -> None:
    model = FAMILIES["vit"]()
    first = explained(model)
    path, mine = only(fresh), tmp_path / "mine.txt"
    path.unlink()
    mine.write_text("not yours")
    if what == "folder":
        path.mkdir()
        (path / "kept.txt").write_text("not yours")
    else:
        path.symlink_to(mine if what == "link" else tmp_path / "nowhere")
    assert torch.equal(explained(model), first)
    assert sum(ran) == 2 * SCENES
    assert mine.read_text() == "not yours"
    assert not (tmp_path / "nowhere").exists()
    assert path.is_dir() if what == "folder" else path.is_symlink()


@pytest.mark.parametrize("where", ["/dev/null/x", "FILE", "", "   "])
def test_where_nothing_can_be_kept_it_is_made_each_time(
    where: str, ran: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "FILE").write_text("a file, no folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITREOUS_CACHE", where)
    model = FAMILIES["vit"]()
    assert torch.equal(explained(model), explained(model))
    assert sum(ran) == 2 * SCENES
    explained(model, forget=False)
    assert sum(ran) == 2 * SCENES
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_nobody_is_at_home(ran: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert disk.cache_folder() is None
    explained(FAMILIES["vit"]())
    assert sum(ran) == SCENES


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_that_is_full_or_cannot_be_written(
    error: int, fresh: Path, ran: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: Any, *others: Any, **options: Any) -> Path:
        raise OSError(error, os.strerror(error), str(path))

    model = FAMILIES["vit"]()
    caplog.set_level("INFO")
    for part in ("write_file", "lock"):
        monkeypatch.setattr(disk, part, refused)
        explained(model)
    assert sum(ran) == 2 * SCENES
    assert [record.levelname for record in caplog.records] == ["INFO"] * 2
    assert "statistics are not kept on disk" in caplog.text
    assert not fresh.exists() or not list(fresh.iterdir())


def test_a_writer_in_the_way_is_not_waited_for(fresh: Path, ran: list[int]) -> None:
    model = FAMILIES["vit"]()
    first = explained(model)
    path = only(fresh)
    path.unlink()
    with disk.lock(path):
        assert torch.equal(explained(model), first)
        assert not path.exists()
    assert torch.equal(explained(model), first)
    assert sum(ran) == 3 * SCENES
    assert only(fresh) == path


# -- at once -----------------------------------------------------------------------------------------------------------


def test_processes_at_once(fresh: Path) -> None:
    """Both start when told; each gets the same, and one whole file is left."""
    command = [sys.executable, "-W", "error::vitreous.VitreousWarning", "-c", SCRIPT, str(TESTS)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) for _ in range(2)]
    message = [item.communicate("go\n") for item in both]
    assert [item.returncode for item in both] == [0, 0], message
    assert message[0][0] == message[1][0] != ""
    assert ActivationStats.load(only(fresh)).description == "world:64"


def test_threads_at_once(fresh: Path) -> None:
    model = FAMILIES["vit"]()
    actual: list[Tensor] = []
    workers = [threading.Thread(target=lambda: actual.append(explained(model, forget=False))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(actual) == 4
    assert all(torch.equal(item, actual[0]) for item in actual)
    only(fresh)


# -- the folder, and the command line ----------------------------------------------------------------------------------


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VITREOUS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    places = {}
    for platform in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        places[platform] = disk.cache_folder()
    assert places == {
        "linux": tmp_path / ".cache" / "vitreous",
        "darwin": tmp_path / "Library" / "Caches" / "vitreous",
        "win32": tmp_path / "AppData" / "Local" / "vitreous",
    }
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert disk.cache_folder() == Path("/local/vitreous")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert disk.cache_folder() == Path("/somewhere/vitreous")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # to be left alone, says the specification
    assert disk.cache_folder() == tmp_path / ".cache" / "vitreous"
    monkeypatch.setenv("VITREOUS_CACHE", "~/mine")
    assert disk.cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("VITREOUS_CACHE", "")
    assert disk.cache_folder() is None


@pytest.mark.parametrize("command", ["explain", "compare", "evaluate"])
def test_a_command_keeps_nothing_where_it_is_asked_to(
    command: str, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photographs(tmp_path))
    short = "coiba(steps=2,samples=1)"
    inputs_of_call = {
        "explain": ("explain", "a.png", *MODEL, "--method", short, "--overwrite"),
        "compare": ("compare", "a.png", *MODEL, "--method", short, "--overwrite"),
        "evaluate": ("evaluate", MODEL[1], "a.png", *MODEL[2:], "--method", short, "--metric", "deletion(steps=2)"),
    }[command]
    assert run(*inputs_of_call, "--no-cache").code == 0
    assert not fresh.exists()
    monkeypatch.setenv("VITREOUS_CACHE", str(fresh))
    scenes._cached.clear()
    assert run(*inputs_of_call).code == 0
    only(fresh)
    shutil.rmtree(fresh)
