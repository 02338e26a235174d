"""Reading weights without ever running code from the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vitreous.errors import CheckpointError, one_line

__all__ = ["fit", "read"]

_NESTS = ("model_ema", "state_dict_ema", "state_dict", "model")


def read(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.safetensors`` file or of a torch file (read with ``weights_only=True``, always).

    The usual wrappings are undone: a ``state_dict`` or ``model`` entry, and ``module.`` in front of every name.
    """
    path = Path(path)
    if not os.path.isfile(path):  # unlike Path.is_file, quiet about names that are too long
        raise CheckpointError(f"no checkpoint at {path}")
    try:
        if path.suffix == ".safetensors":
            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise CheckpointError(
            f"{path} is not a table of plain tensors; it is refused, for reading it could run code"
        ) from error
    except Exception as error:  # foreign bytes can break a reader anywhere
        reason = one_line(f"{type(error).__name__}: {error}")[:160]
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({reason})") from error
    for nest in _NESTS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(nest), Mapping):
            loaded = loaded[nest]
    named = isinstance(loaded, Mapping) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in loaded.items())
    if not named or not loaded:
        raise CheckpointError(f"{path} holds no table of named tensors")
    _refuse_strange(path, loaded)
    plain = {name.removeprefix("module."): tensor for name, tensor in loaded.items()}
    if len(plain) < len(loaded):
        twice = next(name for name in loaded if f"module.{name}" in loaded)
        raise CheckpointError(f"{path} holds both {twice} and module.{twice}; which one is meant?")
    return plain


def _refuse_strange(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what is no plain numbers in memory: the meta device, sparse and quantised tensors."""
    for name, tensor in tensors.items():
        kind = "on the meta device" if tensor.is_meta else "quantised" if tensor.is_quantized else ""
        kind = kind or ("" if tensor.layout == torch.strided else "sparse")
        if kind:
            raise CheckpointError(f"{path}: {name} is {kind}; save plain tensors")


def fit(
    model: nn.Module,
    path: str | Path,
    convert: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] | None = None,
) -> None:
    """Load a checkpoint into a model, all tensors or none; what does not fit is named."""
    tensors = read(path)
    if convert is not None:
        try:
            tensors = convert(dict(tensors), model)
        except Exception as error:  # a foreign file can break the conversion anywhere
            raise CheckpointError(f"{path} does not fit {type(model).__name__}: {error}") from error
    wanted = model.state_dict()
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


def _castable(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers keep their meaning: floats of any width, otherwise the same kind."""
    return given == wanted or (given.is_floating_point and wanted.is_floating_point and given.itemsize >= 2)


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")
