"""Copies of a finished run with one thing wrong in them: a JSON value, some bytes, an array, a member of a zip file."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tiny_benchmark import bench, tiny
from vitreous.benchmark.changes import Changes, refuse_unnamed_code, resume_protocol
from vitreous.benchmark.executors import run as work
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import pack_unit, unpack_unit
from vitreous.benchmark.units import digest_of

PLAN = "plans/0001.json"
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        99,
        10**30,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "../../victim/precious",
        "\ud800\n\x1b[2J",
    ),
    *([], {}, [None], [[]], {"a": {"b": []}}, "this:s", "x" * 5000),
)
"""What anything may be instead."""


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of JSON data, those of tables and lists too."""
    if path:
        yield path
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))


def mutate(data: Any, draw: random.Random) -> tuple[Any, str]:
    """Return a copy with one value replaced or removed, and what was done."""
    created = json.loads(json.dumps(data))
    path = draw.choice(list(leaves(created)))
    owner = created
    for key in path[:-1]:
        owner = owner[key]
    if draw.random() < 0.2:
        del owner[path[-1]]
        return created, f"without {path}"
    owner[path[-1]] = draw.choice(VALUES)
    return created, f"{path} = {owner[path[-1]]!r:.60}"


def renumber(plan: Any, run: Path | None = None) -> Any:
    """Give the units of a plan the digests of what they are now, as its author could; their files follow."""
    for unit in plan["units"]:
        setting = plan["configs"][unit["config"]]
        marks = {name: setting["metric_digests"][name] for name in unit["metrics"] if name in setting["metric_digests"]}
        facts = {
            **setting,
            **dict.fromkeys(("label", "model", "data", "method_digests")),
            "methods": {
                name: [setting["methods"][name], setting["method_digests"][name]] for name in sorted(unit["methods"])
            },
            "modes": unit["modes"],
            "metrics": {name: setting["metrics"][name] for name in sorted(unit["metrics"])},
            "metric_digests": marks,
            "seed": unit["seed"],
            "pictures": unit["images"],
        }
        new = digest_of({name: fact for name, fact in facts.items() if fact or name != "metric_digests"})
        file = None if run is None else run / "units" / f"{unit['id']}.npz"
        unit["id"] = new
        if file is not None and file.exists():
            arrays, info = unpack_unit(file.read_bytes())
            file.with_name(f"{new}.npz").write_bytes(pack_unit(arrays, {**info, "unit": unit}))
    return plan


def words(run: Path, name: str) -> Any:
    return json.loads((run / name).read_bytes())


def write(run: Path, name: str, data: Any) -> None:
    (run / name).write_text(json.dumps(data))


def repacked(file: Path, arrays: Any, info: Any) -> None:
    """Write a unit whose checksums are right, whatever it says."""
    content = np.frombuffer(json.dumps(info).encode(), np.uint8)
    np.savez(file, **{**arrays, "info.json": content})


def mutant(run: Path, out: Path, seed: int) -> str:
    """Copy a run and change one thing in the copy; return what."""
    draw = random.Random(seed)
    shutil.copytree(run, out)
    kind = draw.choice(["run.json", "plan", "plan of an author", "failure", "words", "array", "bytes", "text", "zip"])
    units = sorted((out / "units").glob("*.npz"))
    unit = draw.choice(units)
    if kind == "run.json":
        data, what = mutate(words(out, kind), draw)
        write(out, kind, data)
    elif kind.startswith("plan"):
        data, what = mutate(words(out, "plans/0001.json"), draw)
        if kind != "plan":
            with suppress(TypeError, KeyError, ValueError, IndexError, AttributeError):
                data = renumber(data, out)
        write(out, "plans/0001.json", data)
    elif kind == "failure":
        (out / "failures").mkdir(exist_ok=True)
        data, what = mutate({"schema": "vitreous.failure/1", "tries": ["once", "twice"]}, draw)
        write(out, f"failures/{unit.stem}.json", data)
    elif kind == "words":
        arrays, info = unpack_unit(unit.read_bytes())
        info, what = mutate(info, draw)
        repacked(unit, arrays, info)
    elif kind == "array":
        arrays, info = unpack_unit(unit.read_bytes())
        name = draw.choice(sorted(arrays))
        own = arrays[name]
        strange = [
            own[:-1],
            own[None],
            own.astype(np.float64) * np.nan,
            np.zeros(0),
            own.astype(np.int64) - 10**6,
            own.astype("S4"),
        ]
        new: Any = draw.choice([*strange, None])
        arrays = {**arrays, name: new} if new is not None else {k: v for k, v in arrays.items() if k != name}
        what = f"{name}: {None if new is None else (new.shape, new.dtype)}"
        repacked(unit, arrays, info)
    elif kind == "zip":
        what = _rezipped(unit, draw)
    else:
        file = unit if kind == "bytes" else out / draw.choice(["run.json", "plans/0001.json"])
        content = bytearray(file.read_bytes())
        start = draw.randrange(len(content))
        for at in range(start, min(start + draw.choice([1, 1, 8, 400]), len(content))):
            content[at] ^= draw.choice([1, 0x10, 0x80, 0xFF])
        file.write_bytes(content)
        what = f"{file.name} from byte {start}"
    return f"{seed}: {kind}: {what}"


def _rezipped(file: Path, draw: random.Random) -> str:
    """Change a field of the table of contents of a zip file, which no checksum covers."""
    content = bytearray(file.read_bytes())
    starts = [
        at for at in range(len(content) - 4) if content[at : at + 4] in (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6")
    ]
    start, at = draw.choice(starts), draw.randrange(4, 60)
    if start + at < len(content):
        content[start + at] ^= draw.choice([1, 8, 0x40, 0xFF])
    file.write_bytes(content)
    return f"byte {at} of the record at {start}"


def zipped(members: dict[str, bytes], **options: Any) -> bytes:
    """Return a zip file of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run as members of a packed one."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.name.startswith(".vitreous-")]
    return {file.relative_to(run).as_posix(): file.read_bytes() for file in files}


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


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
