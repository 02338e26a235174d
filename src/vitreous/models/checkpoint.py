"""Reading weights without ever running code from the file, and telling what was taken from where."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous import disk
from vitreous.errors import CheckpointError, one_line
from vitreous.models.translate import translate
from vitreous.models.unpickle import Stub, unpickle

__all__ = ["Checkpoint", "classes_in", "fit", "read"]

_log = logging.getLogger("vitreous")

_NESTS = (
    *("model_ema", "state_dict_ema", "ema_state_dict", "ema", "teacher"),
    *("state_dict", "model_state_dict", "model", "net", "network", "module"),
)
"""Where tables of weights lie in a file, the preferred ones first: averaged weights before those of the last step."""

_WRAPPERS = re.compile(r"(^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OWNERS = ("model.", "net.", "network.")
"""What a training loop puts before the names of its model."""

_HEADS = re.compile(r"(?:heads?(?:\.head|\.fc)?|fc|(?:cls_)?classifier)\.weight")


@dataclass(frozen=True)
class Checkpoint:
    """The named tensors of a file, and one line that tells where in it they were."""

    path: Path
    tensors: dict[str, Tensor]
    told: str = ""

    @classmethod
    def read(cls, path: str | Path) -> Checkpoint:
        """Read a ``.safetensors`` file or a torch file.

        The usual wrappings are undone: tables inside tables, and what parallel, compiled and training wrappers put
        before names. Things beside the tensors are left aside; in a torch file they are never made (``unpickle``).
        """
        path = Path(path)
        if not os.path.isfile(path):  # unlike Path.is_file, quiet about names that are too long
            raise CheckpointError(f"no checkpoint at {path}")
        table, where, beside = _inside(path, _content(path))
        _refuse_strange(path, table)
        plain, taken, others = _plain(path, table)
        told = [f"{len(plain)} tensors"]
        told += [f"from its {'.'.join(where)}"] if where else []
        told += [f"without {', '.join(taken)} before the names"] if taken else []
        left = beside + others
        told += [f"{_some(left)} left aside"] if left else []
        return cls(path, plain, ", ".join(told))


def read(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a weight file by their plain names: see ``Checkpoint``."""
    return Checkpoint.read(path).tensors


def classes_in(tensors: Mapping[str, Tensor]) -> int | None:
    """Return how many classes the head in a table of weights has; None where no one head is to be seen."""
    found = {len(t) for name, t in tensors.items() if t.ndim == 2 and len(t) and _HEADS.fullmatch(name)}
    return found.pop() if len(found) == 1 else None


def _content(path: Path) -> Any:
    try:
        disk.open_file(path).close()  # the readers below would wait for a pipe
        if path.suffix == ".safetensors":
            return load_file(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError:  # more than plain tensors
            return unpickle(path)
    except Exception as error:  # foreign bytes can break a reader anywhere
        reason = one_line(f"{type(error).__name__}: {error}")[:160]
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({reason})") from error


def _inside(path: Path, loaded: Any) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Return the table of tensors, the entries on the way to it, and what lies beside it."""
    where: list[str] = []
    beside: list[str] = []
    while isinstance(loaded, Mapping):
        named = {key: value for key, value in loaded.items() if isinstance(key, str)}
        table = {key: value for key, value in named.items() if isinstance(value, Tensor)}
        nest = _nest(named)
        if table and (nest is None or len(table) >= len(named[nest])):
            if len(named) < len(loaded):
                break
            return table, where, beside + [key for key in named if key not in table]
        if nest is None:
            loaded = next((named[nest] for nest in _NESTS if isinstance(named.get(nest), Stub)), loaded)
            break
        where.append(nest)
        beside += [key for key in named if key != nest]
        loaded = loaded[nest]
    if isinstance(loaded, Stub):
        raise CheckpointError(
            f"{path} holds a pickled {one_line(loaded.told)}, which only its own code could make, and no code is run; "
            "save model.state_dict() instead"
        )
    raise CheckpointError(f"{path} holds no table of named tensors")


def _nest(named: Mapping[str, Any]) -> str | None:
    """Return the entry that holds the weights: the first by preference, or the only one with named tensors in it."""
    filled = [name for name in named if _holds(named[name])]
    usual = [nest for nest in _NESTS if nest in filled]
    return usual[0] if usual else filled[0] if len(filled) == 1 else None


def _holds(value: Any, depth: int = 4) -> bool:
    """Whether there are tensors under names in a table, or in tables inside it."""
    if not isinstance(value, Mapping) or not depth:
        return False
    inside = [each for name, each in value.items() if isinstance(name, str)]
    return any(isinstance(each, Tensor) for each in inside) or any(_holds(each, depth - 1) for each in inside)


def _unwrapped(path: Path, table: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Take off what parallel and compiled wrappers put before names; say what that was."""
    origin: dict[str, str] = {}
    taken: list[str] = []
    for name in table:
        plain = _WRAPPERS.sub(r"\1", name)
        taken += ["_orig_mod."] if plain != name else []
        while plain.startswith("module."):
            plain = _WRAPPERS.sub(r"\1", plain.removeprefix("module."))
            taken.append("module.")
        if plain in origin:
            raise CheckpointError(f"{path} holds both {origin[plain]} and {name}; which one is meant?")
        origin[plain] = name
    return {plain: table[name] for plain, name in origin.items()}, taken


def _plain(path: Path, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Take off everything before the names; where most stand under ``model.``, the rest, such as a loss, is left aside.

    Returns the tensors, what was taken off, and the names of the rest.
    """
    taken: list[str] = []
    others: list[str] = []
    while True:
        tensors, wrappers = _unwrapped(path, tensors)
        taken += wrappers
        owner = next((o for o in _OWNERS if 2 * sum(name.startswith(o) for name in tensors) > len(tensors)), None)
        if owner is None:
            return tensors, list(dict.fromkeys(taken)), others
        taken.append(owner)
        others += [name for name in tensors if not name.startswith(owner)]
        tensors = {name.removeprefix(owner): tensor for name, tensor in tensors.items() if name.startswith(owner)}


def _refuse_strange(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what is no plain numbers in memory: the meta device, sparse and quantised tensors."""
    for name, tensor in tensors.items():
        kind = "on the meta device" if tensor.is_meta else "quantised" if tensor.is_quantized else ""
        kind = kind or ("" if tensor.layout == torch.strided else "sparse")
        if kind:
            raise CheckpointError(f"{path}: {name} is {kind}; save plain tensors")


def fit(
    model: nn.Module,
    checkpoint: str | Path | Checkpoint,
    convert: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] | None = None,
) -> None:
    """Load a checkpoint into a model, all tensors or none; what does not fit is named.

    Names of another library for the same architecture are translated where that can be done in one way only. What was
    taken from where is logged in one line.
    """
    found = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.read(checkpoint)
    path, wanted = found.path, model.state_dict()
    try:
        tensors, language = translate(found.tensors, model)
        tensors = tensors if convert is None else convert(tensors, model)
    except Exception as error:  # a foreign file can break the conversion anywhere
        raise CheckpointError(f"{path} does not fit {type(model).__name__}: {one_line(str(error))}") from error
    shapes = [n for n in tensors if n in wanted and tensors[n].shape != wanted[n].shape]
    problems = {
        "missing": [name for name in wanted if name not in tensors],
        "unexpected": [name for name in tensors if name not in wanted],
        "of another shape": [f"{n} {tuple(tensors[n].shape)} for {tuple(wanted[n].shape)}" for n in shapes],
    }
    kinds = [n for n in tensors if n in wanted and not _castable(tensors[n].dtype, wanted[n].dtype)]
    problems["of another type"] = [f"{n} {tensors[n].dtype} for {wanted[n].dtype}" for n in kinds]
    told = [f"{len(names)} {what} ({_some(names)})" for what, names in problems.items() if names]
    if told:
        raise CheckpointError(f"{path} does not fit {type(model).__name__}: {'; '.join(told)}")
    model.load_state_dict(tensors)
    classes = classes_in(tensors)
    parts = [found.told, f"translated from {language}" if language else "", f"{classes} classes" if classes else ""]
    _log.info(one_line(f"weights from {path}: {', '.join(part for part in parts if part)}"))


def _castable(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers keep their meaning: floats of any width, otherwise the same kind."""
    return given == wanted or (given.is_floating_point and wanted.is_floating_point and given.itemsize >= 2)


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")
