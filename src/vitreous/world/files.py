"""Scenes on disc: one picture and one mask each, and all of them as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous import disk
from vitreous.errors import VitreousError, one_line
from vitreous.world.creatures import PARTS
from vitreous.world.render import OWNERS, render
from vitreous.world.scene import Scene

__all__ = ["SCHEMA", "pictures", "read", "write"]

SCHEMA = "vitreous.scenes/1"
_AT_ONCE = 64  # scenes rendered together
_COLOURS = ("20222a", "8a8378", "e0567a", "f2c14e", "4d9de0", "59c38f", "b87fd9")
"""Ground, body and parts in the picture of a mask; objects are grey, the marker white, a companion brown."""


def pictures(images: Tensor) -> Iterator[Image.Image]:
    """Yield rendered images ``[B, 3, S, S]`` as pictures."""
    for image in (images * 255).round().to(torch.uint8).cpu().permute(0, 2, 3, 1).numpy():
        yield Image.fromarray(image)


def write(scenes: Sequence[Scene], out: str | Path, size: int = 128, *, overwrite: bool = False) -> list[Path]:
    """Write ``scene-N.png``, ``scene-N-mask.png`` (whose pixel it is) and ``scenes.json``; return the files.

    A mask is a palette picture whose values are those under ``owners`` in the JSON.
    """
    table: list[dict[str, Any]] = []
    with disk.folder(out, overwrite=overwrite) as draft:
        for start in range(0, len(scenes), _AT_ONCE):
            some = scenes[start : start + _AT_ONCE]
            rendered = render(some, size)
            for scene, seen, owner in zip(some, pictures(rendered.images), rendered.owner, strict=True):
                name, mask = f"scene-{len(table):04d}.png", f"scene-{len(table):04d}-mask.png"
                draft.write(name, _png(seen))
                draft.write(mask, _png(_mask(owner)))
                table.append({"file": name, "mask": mask, **scene.to_json()})
        draft.finish({"schema": SCHEMA, "size": size, "owners": OWNERS, "scenes": table}, "scenes.json")
    return [Path(out) / name for name in draft.names]


def _mask(owner: Tensor) -> Image.Image:
    whose = Image.fromarray(np.asarray(owner.cpu()), mode="P")
    whose.putpalette(bytes.fromhex("".join(_palette())))
    return whose


def _png(image: Image.Image) -> Callable[[BinaryIO], None]:
    return lambda file: image.save(file, format="PNG")


def read(path: str | Path) -> list[Scene]:
    """Return the scenes of a ``scenes.json``."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VitreousError(f"{path} cannot be read as scenes: {one_line(str(error))}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("scenes"), list):
        raise VitreousError(f"{path} is no file of scenes ({SCHEMA})")
    return [Scene.from_json(_scene(each)) for each in data["scenes"]]


def _scene(entry: Any) -> Any:
    """An entry of the file without the names of its pictures."""
    return {k: v for k, v in entry.items() if k not in ("file", "mask")} if isinstance(entry, dict) else entry


def _palette() -> list[str]:
    rest = dict.fromkeys(OWNERS, "c08a5a") | {name: "6b7080" for name in OWNERS if name.startswith("object")}
    rest |= dict(zip(("ground", "body", *PARTS), _COLOURS, strict=True)) | {"marker": "ffffff"}
    return [rest[name] for name in OWNERS]
