"""Runs from anywhere, requests from anyone: nothing outside is read, nothing hangs, every refusal is one line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from run_mutants import renumber
from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import pack_unit
from web_runs import Client, arrays, done, finished_run, protocol, served

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

OPENED: list[str] = []
HEARS = threading.Event()


def heard(event: str, arguments: tuple[Any, ...]) -> None:
    """Write down every file and folder that this process looks into."""
    if (
        HEARS.is_set()
        and event in ("open", "os.listdir", "os.scandir")
        and arguments
        and isinstance(arguments[0], str | os.PathLike)
    ):
        OPENED.append(os.path.realpath(arguments[0]))


sys.addaudithook(heard)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("abuse") / "run")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A run of one's own, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture(scope="module")
def client(original: Path) -> Iterator[Client]:
    with served({"run": original}) as answer:
        yield answer


def one_line(status: int, content: Any, expected: int) -> str:
    assert status == expected, content
    assert list(content) == ["error"]
    words = content["error"]
    assert isinstance(words, str)
    assert words
    assert "\n" not in words
    assert "Traceback" not in words
    assert len(words) <= 500
    return words


@pytest.mark.parametrize(
    "path",
    [
        *("/nobody", "/.", "/%2e%2e", "/..%2f..%2fetc%2fpasswd", "/%2fetc%2fpasswd", "/run%00", "/" + "x" * 5000),
        *("/run/../../etc", "/run/picture/../../run.json", "/run/units", "/RUN", "/run%20"),
    ],
)
def test_a_run_is_no_path(client: Client, path: str) -> None:
    status, content, _ = client.raw(f"/api/runs{path}")
    assert status == 404
    assert b"root:" not in content


CELL: dict[str, Any] = {"method": "generic", "metric": "gini"}


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/cell", {**CELL, "part": "x"}, 422),
        ("/cell", {**CELL, "part": -1}, 422),
        ("/cell", {**CELL, "part": 2}, 404),
        ("/cell", {**CELL, "page": 10**9}, 422),
        ("/cell", {**CELL, "page": "1.5"}, 422),
        ("/cell", {**CELL, "size": 0}, 422),
        ("/cell", {**CELL, "size": 10**6}, 422),
        ("/cell", {**CELL, "order": "sideways"}, 422),
        ("/cell", {**CELL, "low": "nan"}, 422),
        ("/cell", {**CELL, "low": "inf"}, 422),
        ("/cell", {**CELL, "high": 2}, 422),
        ("/cell", {**CELL, "correct": "maybe"}, 422),
        ("/cell", {**CELL, "predicted": -1}, 422),
        ("/cell", {**CELL, "predicted": "<script>"}, 422),
        ("/cell", {**CELL, "name": "x" * 201}, 422),
        ("/cell", {"method": "generic"}, 422),
        ("/cell", {"method": "../generic", "metric": "gini"}, 404),
        ("/cell", {"method": "generic", "metric": "x\ny" * 200}, 404),
        ("/scores", {"method": ["generic"], "metric": ["gini", "gini"]}, 422),
        ("/scores", {"method": ["generic"] * 5, "metric": ["gini"] * 5}, 422),
        ("/scores", {**CELL, "most": 10**9}, 422),
        ("/image", {"picture": "../../run.json"}, 404),
        ("/image", {}, 422),
        ("/picture", {"picture": "/etc/passwd"}, 404),
        ("/picture", {"picture": "scene-000001"}, 404),
        ("/photo", {"picture": "\x00"}, 404),
    ],
)
def test_wrong_requests_are_told_in_a_line(client: Client, path: str, query: dict[str, Any], expected: int) -> None:
    one_line(*client.get(f"/run{path}", **query), expected)


def plan_of(run: Path) -> tuple[Path, dict[str, Any]]:
    file = run / "plans" / "0001.json"
    return file, json.loads(file.read_text())


def wanted_of(run: Path) -> tuple[Path, dict[str, Any]]:
    return run / "run.json", json.loads((run / "run.json").read_text())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder that no run has to do with: numbers and pictures."""
    folder = tmp_path / "secret"
    folder.mkdir()
    Image.new("RGB", (64, 64), (250, 1, 2)).save(folder / "scene-000000.png")
    (folder / "names.txt").write_text("scene-000000\n")
    return folder


def listened(run: Path, secret: Path, **more: Any) -> Any:
    """Ask for everything of a run; what it opens must not be in the secret folder."""
    OPENED.clear()
    HEARS.set()
    try:
        with served({"run": run}, **more) as client:
            answers = [client.get("/run")]
            for part in (0, 1):
                status, answer = client.get("/run/cell", part=part, **CELL)
                answers.append((status, answer))
                for value in answer.get("images", ())[:2]:
                    picture = value["picture"]
                    answers.append(client.get("/run/image", part=part, picture=picture))
                    for what in ("picture", "photo"):
                        client.raw(f"/api/runs/run/{what}?part={part}&picture={picture}")
    finally:
        HEARS.clear()
    assert OPENED
    outside = os.path.realpath(secret)
    assert [entry for entry in OPENED if entry == outside or entry.startswith(outside + os.sep)] == []
    return answers[0]


def test_units_are_not_read_elsewhere(run: Path, secret: Path) -> None:
    """A plan names a unit that climbs out of the folder; a unit that is a link; a folder of units that is one."""
    file, plan = plan_of(run)
    name = plan["units"][-1]["id"]
    shutil.copy(run / "units" / f"{name}.npz", secret / "x.npz")
    (run / "units" / f"{name}.npz").unlink()
    (run / "units" / f"{name}.npz").symlink_to(secret / "x.npz")
    status, answer = listened(run, secret)
    assert status == 200
    assert f"units/{name}.npz" in answer["notes"][0]
    assert "Unfinished" in answer["state"]
    for entry in plan["units"]:
        entry["id"] = f"../../secret/{entry['id']}" if entry["id"] == name else entry["id"]
    file.write_text(json.dumps(plan))
    assert "nothing was planned" in one_line(*listened(run, secret), 409)
    shutil.move(run / "units", secret / "units")
    (run / "units").symlink_to(secret / "units")
    file.write_text(json.dumps(plan_of(run)[1]).replace(f"../../secret/{name}", name))
    status, answer = listened(run, secret)
    assert "Unfinished: 294 of 294" in answer["state"]


@pytest.mark.parametrize("what", ["run.json", "plans"])
def test_manifest_and_plans_are_not_read_elsewhere(run: Path, secret: Path, what: str) -> None:
    shutil.move(run / what, secret / what)
    (run / what).symlink_to(secret / what)
    one_line(*listened(run, secret), 409)


def hostile(secret: Path) -> dict[str, Callable[[dict[str, Any]], None]]:
    """Ways to say that the pictures are in the secret folder."""

    def change(**more: Any) -> Callable[[dict[str, Any]], None]:
        return lambda wanted: wanted["protocol"]["data"].update(more)

    return {
        "path": change(source="folder", path=str(secret), split=None),
        "list": change(choose="listed", names=str(secret / "names.txt")),
        "split": change(source="mura", path=str(secret.parent), split="secret"),
        "climbing": change(source="imagenet-s", path=str(secret.parent / "run"), split="../secret"),
        "option": lambda wanted: wanted.update(data=str(secret)),
        "world": change(path=str(secret)),
        "hub": change(source="hf", path="somebody/something", split=None),
    }


@pytest.mark.parametrize("way", sorted(hostile(Path())))
def test_what_a_run_says_about_pictures_is_not_followed(run: Path, secret: Path, way: str) -> None:
    file, manifest = wanted_of(run)
    hostile(secret)[way](manifest["wanted"])
    file.write_text(json.dumps(manifest))
    status, answer = listened(run, secret)
    assert status == 200
    assert answer["parts"][0]["pictures"] == (way in ("list", "option", "world"))  # those of the world are rendered


def test_a_split_cannot_climb(run: Path, secret: Path, tmp_path: Path) -> None:
    """Not even where a place was named at the start."""
    (tmp_path / "data").mkdir()
    file, manifest = wanted_of(run)
    hostile(secret)["climbing"](manifest["wanted"])
    file.write_text(json.dumps(manifest))
    _, answer = listened(run, secret, data=str(tmp_path / "data"))
    assert "no split" in answer["parts"][0]["why"]


def test_damaged_units_are_left_out(run: Path) -> None:
    units = sorted((run / "units").glob("*.npz"))
    full_size = units[0].stat().st_size
    units[0].write_bytes(units[0].read_bytes()[: full_size // 2])
    units[1].write_bytes(b"")
    with served({"run": run}) as client:
        answer = client.fine("/run")
        assert units[0].name in answer["notes"][0]
        assert units[1].name in answer["notes"][0]
        assert len(answer["parts"]) == 2
        for part in (0, 1):
            client.fine("/run/cell", part=part, **CELL) if answer["parts"][part]["methods"] else None


def judging(run: Path) -> Any:
    return next(unit for plan in Store(run).plans() for unit in plan.units if unit.is_scoring)


def test_a_bomb_is_not_unpacked(run: Path) -> None:
    unit = judging(run)
    np.savez_compressed(run / "units" / f"{unit.id}.npz", **{"parts/0/0": np.zeros((2**20, 4))})
    with served({"run": run}) as client:
        assert unit.id in client.fine("/run")["notes"][0]


def test_promises_are_not_believed(run: Path) -> None:
    """An array that says it has a trillion numbers."""
    unit = judging(run)
    content = pack_unit(arrays(unit), {"unit": unit.to_json(), "images": list(unit.images), "unreadable": {}})
    shape = f"({len(unit.images)}, 1), }}".encode()
    large = b"(10**12,), }".replace(b"10**12", b"9" * 12)
    assert content.count(shape)
    padded = content.replace(shape, large[: len(shape)].ljust(len(shape)), 1)
    (run / "units" / f"{unit.id}.npz").write_bytes(padded)
    with served({"run": run}) as client:
        assert unit.id in client.fine("/run")["notes"][0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(run: Path) -> None:
    unit = judging(run)
    (run / "units" / f"{unit.id}.npz").unlink()
    os.mkfifo(run / "units" / f"{unit.id}.npz")
    with served({"run": run}) as client:
        assert unit.id in client.fine("/run")["notes"][0]


@pytest.mark.parametrize(
    "words",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"null",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"schema": "vitreous.run/1"}',
            b'{"schema": "other/7"}',
        ),
        *(b'{"schema": "vitreous.run/1", "wanted": []}', b'{"schema": "vitreous.run/1", "wanted": {"protocol": {}}}'),
    ],
)
def test_a_manifest_that_is_none(run: Path, words: bytes) -> None:
    (run / "run.json").write_bytes(words)
    with served({"run": run}) as client:
        one_line(*client.get("/run"), 409)
        one_line(*client.get("/run/cell", **CELL), 409)


@pytest.mark.parametrize("words", [b"", b"[]", b"[" * 100_000, b'{"units": 3}'])
def test_a_plan_that_is_none(run: Path, words: bytes) -> None:
    """A second plan is broken: the first one is shown, and the second is named."""
    (run / "plans" / "0002.json").write_bytes(words)
    with served({"run": run}) as client:
        answer = client.fine("/run")
        assert "plans/0002.json" in answer["notes"][0]
        assert answer["state"] == ""
    (run / "plans" / "0001.json").write_bytes(words)
    with served({"run": run}) as client:
        one_line(*client.get("/run"), 409)


def test_a_folder_that_is_gone(run: Path) -> None:
    with served({"run": run, "empty": run / "units"}) as client:
        shutil.rmtree(run)
        assert "no run.json" in one_line(*client.get("/run"), 409)
        one_line(*client.get("/empty"), 409)


def test_sizes_are_not_believed(run: Path) -> None:
    file, plan = plan_of(run)
    for setting in plan["configs"]:
        setting["preprocess"]["size"] = [10**4, 10**4]
    file.write_text(json.dumps(renumber(plan, run)))
    with served({"run": run}) as client:
        picture = client.fine("/run/scores", **CELL)["pictures"][0]
        one_line(*client.get("/run/picture", picture=picture), 404)


def test_many_at_once(client: Client) -> None:
    """Fifty requests of all kinds, side by side: every one is answered, and alike."""
    picture = client.fine("/run/scores", **CELL)["pictures"][0]
    requests = [("/run", {}), ("/run/cell", CELL), ("/run/scores", CELL), ("/run/image", {"picture": picture})]
    expected = [client.fine(path, **query) for path, query in requests]
    with ThreadPoolExecutor(50) as pool:
        answer = list(pool.map(lambda n: client.fine(requests[n % 4][0], **requests[n % 4][1]), range(50)))
    assert all(entry == expected[n % 4] for n, entry in enumerate(answer))


def photographs(tmp_path: Path) -> tuple[Path, Path]:
    """A run on a folder of pictures, and the folder."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for place in range(4):
        Image.new("RGB", (160, 140), (40 * place, 90, 200)).save(folder / f"photo {place}.png")
    replacement: Protocol = replace(
        protocol(),
        models=(ModelSpec("world", "world"),),
        data=DataSpec("folder", path=str(folder)),
        also=(),
        evaluation=EvaluationSpec(("gini",)),
        published=(),
    )
    BenchmarkRun(replacement, tmp_path / "run", Options(device="cpu")).prepare()
    store = Store(tmp_path / "run")
    for unit in store.plans()[0].units:
        done(store, unit)
    return tmp_path / "run", folder


def test_photographs_are_shown_where_their_place_was_named(tmp_path: Path) -> None:
    run, folder = photographs(tmp_path)
    with served({"run": run}) as client:
        part = client.fine("/run")["parts"][0]
        assert not part["pictures"]
        assert "--data" in part["why"]
        picture = client.fine("/run/scores", **CELL)["pictures"][0]
        assert "--data" in one_line(*client.get("/run/picture", picture=picture), 404)
    moved = folder.rename(tmp_path / "moved")
    with served({"run": run}, data=str(moved)) as client:
        assert client.fine("/run")["parts"][0]["pictures"]
        answer = client.fine("/run/scores", **CELL)
        for picture, name in zip(answer["pictures"], answer["names"], strict=True):
            assert client.raw(f"/api/runs/run/photo?picture={picture}")[1] == (moved / name).read_bytes()
            status, _, kind = client.raw(f"/api/runs/run/picture?picture={picture}")
            assert (status, kind) == (200, "image/png")
        Image.new("RGB", (160, 140), (1, 1, 1)).save(moved / answer["names"][1])
    with served({"run": run}, data=str(moved)) as client:
        assert "has changed" in one_line(*client.get("/run/picture", picture=answer["pictures"][1]), 404)
        assert client.raw(f"/api/runs/run/picture?picture={answer['pictures'][0]}")[0] == 200
