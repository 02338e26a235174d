"""The names that timm, Hugging Face and torchvision give to the tensors of one architecture, the plain ViT.

Each library's table is taken apart into parts with common names, timm's, in which queries, keys and values are three
parts; from these the other library's table is put together. Whatever has no common name keeps its own, so that it is
told as missing or unexpected: nothing is guessed.

Reading weights without ever running code from the file, and telling what was taken from where.

How a model was loaded, so that the same call can be written down again.
"""

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

from vitreous import io as disk
from vitreous.errors import CheckpointError, one_line
from vitreous.models.identity import state
from vitreous.models.preprocess import Preprocess
from vitreous.models.unpickler import Stub, unpickle

_SIGNS = {
    "timm": re.compile(r"blocks\.0\.attn\.qkv\.weight"),
    "Hugging Face": re.compile(r"(?:(?:vit|deit)\.)?(?:encoder\.layer|layers)\.0\.attention\.\S+\.weight"),
    "torchvision": re.compile(r"encoder\.layers\.encoder_layer_0\.self_attention\.in_proj_weight"),
}
"""A name by which the tables of each library are known."""

_BLOCKS = {
    "Hugging Face": re.compile(r"(?:(?:vit|deit)\.)?(?:encoder\.layer|layers)\.(\d+)\.(.+)\.(weight|bias)"),
    "torchvision": re.compile(r"encoder\.layers\.encoder_layer_(\d+)\.(.+)[._](weight|bias)"),
}
_OTHERS = re.compile(r"(?:(?:vit|deit)\.)?(?:embeddings\.)?(.+?)((?:\.(?:weight|bias))?)")

_ENDS = {
    "cls_token": "cls_token",
    "distillation_token": "dist_token",
    "position_embeddings": "pos_embed",
    "patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "classifier": "head",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
    "class_token": "cls_token",
    "conv_proj": "patch_embed.proj",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln": "norm",
    "heads.head": "head",
}
_BLOCK_ENDS = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.attention.query": "attn.q",
    "attention.attention.key": "attn.k",
    "attention.attention.value": "attn.v",
    "attention.output.dense": "attn.proj",
    "attention.q_proj": "attn.q",
    "attention.k_proj": "attn.k",
    "attention.v_proj": "attn.v",
    "attention.o_proj": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "self_attention.in_proj": "attn.qkv",
    "self_attention.out_proj": "attn.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
    "mlp.linear_1": "mlp.fc1",
    "mlp.linear_2": "mlp.fc2",
}


def translate(tensors: Mapping[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Return tensors under the names of a model, and whose names they had if those are another library's."""
    wanted = model.state_dict()
    given, asked = _language(tensors), _language(wanted)
    same = given == asked and not (given == "Hugging Face" and tensors.keys() != wanted.keys())
    reads_token = getattr(model, "global_pool", "token") == "token"
    if given is None or asked is None or same or not reads_token:
        return dict(tensors), ""
    parts = _parts(tensors, given)
    made: dict[str, Tensor] = {}
    used: set[str] = set()
    for name in wanted:
        common = _common(name, asked)
        pieces = _pieces(common)
        if all(piece in parts for piece in pieces):
            values = [parts[piece][1] for piece in pieces]
            made[name] = values[0] if len(values) == 1 else torch.cat(values)
            used.update(parts[piece][0] for piece in pieces)
    made.update((name, tensor) for name, tensor in tensors.items() if name not in used)
    return made, f"{given}'s names"


def _language(tensors: Mapping[str, Tensor]) -> str | None:
    found = [language for language, sign in _SIGNS.items() if any(map(sign.fullmatch, tensors))]
    return found[0] if len(found) == 1 else None


def _parts(tensors: Mapping[str, Tensor], language: str) -> dict[str, tuple[str, Tensor]]:
    """Return the parts of a table by their common names, each with the name it had."""
    parts: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        pieces = _pieces(_common(name, language))
        if tensor.ndim and len(tensor) % len(pieces) == 0:
            cut = tensor.chunk(len(pieces))
            parts.update((piece, (name, part)) for piece, part in zip(pieces, cut, strict=True))
    return parts


def _common(name: str, language: str) -> str:
    if language == "timm":
        return name
    block = _BLOCKS[language].fullmatch(name)
    if block is not None:
        return f"blocks.{block[1]}.{_BLOCK_ENDS.get(block[2], block[2])}.{block[3]}"
    other = _OTHERS.fullmatch(name)
    end = None if other is None else _ENDS.get(other[1])
    return name if other is None or end is None else end + other[2]


def _pieces(common: str) -> list[str]:
    """Return queries, keys and values where a name stands for all three, else the name alone."""
    if ".attn.qkv." not in common:
        return [common]
    return [common.replace(".qkv.", f".{letter}.") for letter in "qkv"]


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


_MOST_NAMES = 20
"""Longer lists are named, not written out."""


@dataclass(frozen=True)
class Recipe:
    """The arguments of ``load``, and the state of the model right after it."""

    name: str
    options: Mapping[str, Any]
    weights: Any

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], module: nn.Module) -> Recipe:
        """Remember a call; arguments that say nothing are left out."""
        return cls(name, {key: value for key, value in options.items() if value is not None}, state(module))

    def holds(self, module: nn.Module) -> bool:
        """Whether the model is still what was loaded."""
        return bool(state(module) == self.weights)

    @property
    def is_random(self) -> bool:
        """Whether loading again gives other weights."""
        return self.options.get("pretrained") is False and "checkpoint" not in self.options

    def code(self) -> tuple[str, list[str]]:
        """Return the call in Python, and what each name in it stands for that cannot be written out."""
        words, names = [repr(self.name)], []
        for option, value in self.options.items():
            literal = _literal(value)
            words.append(f"{option}={option if literal is None else literal}")
            if literal is None:
                names.append(f"{option}: {_described(value)}")
        return f"vt.load({', '.join(words)})", names


def _literal(value: Any) -> str | None:
    """Return Python that gives an equal value; ``None`` where there is none, or it is too long."""
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, torch.device | torch.dtype):
        return repr(str(value).removeprefix("torch."))
    if type(value) is Preprocess:
        return f"vt.{value!r}"
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    plain = isinstance(value, list | tuple) and len(value) <= _MOST_NAMES
    return repr(value) if plain and all(isinstance(each, str | bool | int | float) for each in value) else None


def _described(value: Any) -> str:
    count = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"your own {type(value).__name__}{count}"
