"""Reading weight files without ever running code from them, and how a model was loaded.

The names that timm, Hugging Face and torchvision give to the tensors of the plain ViT: each library's table is taken
apart into parts with common names, timm's, in which queries, keys and values are three parts; from these the other
library's table is put together. Whatever has no common name keeps its own, so that it is named as missing or
unexpected: nothing is guessed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
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

_log = logging.getLogger("vitreous")

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
    "cls_token": "cls_token", "class_token": "cls_token", "distillation_token": "dist_token",
    "position_embeddings": "pos_embed", "encoder.pos_embedding": "pos_embed",
    "patch_embeddings.projection": "patch_embed.proj", "conv_proj": "patch_embed.proj",
    "layernorm": "norm", "encoder.ln": "norm",
    "classifier": "head", "cls_classifier": "head", "heads.head": "head", "distillation_classifier": "head_dist",
}  # fmt: skip
_BLOCK_ENDS = {
    "layernorm_before": "norm1", "ln_1": "norm1", "layernorm_after": "norm2", "ln_2": "norm2",
    "attention.attention.query": "attn.q", "attention.attention.key": "attn.k", "attention.attention.value": "attn.v",
    "attention.q_proj": "attn.q", "attention.k_proj": "attn.k", "attention.v_proj": "attn.v",
    "self_attention.in_proj": "attn.qkv",
    "attention.output.dense": "attn.proj", "attention.o_proj": "attn.proj", "self_attention.out_proj": "attn.proj",
    "intermediate.dense": "mlp.fc1", "mlp.0": "mlp.fc1", "mlp.linear_1": "mlp.fc1",
    "output.dense": "mlp.fc2", "mlp.3": "mlp.fc2", "mlp.linear_2": "mlp.fc2",
}  # fmt: skip
"""Names outside the blocks and inside them, and timm's."""


def translate(tensors: Mapping[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], str]:
    """Return tensors under the names of a model, and whose names they had if those are another library's."""
    wanted = model.state_dict()
    source, target = _library(tensors), _library(wanted)
    is_same = source == target and (source != "Hugging Face" or tensors.keys() == wanted.keys())
    reads_token = getattr(model, "global_pool", "token") == "token"
    if source is None or target is None or is_same or not reads_token:
        return dict(tensors), ""
    parts = _take_apart(tensors, source)
    translated: dict[str, Tensor] = {}
    used: set[str] = set()
    for name in wanted:
        names = _parts(name, target)
        if parts.keys() >= set(names):
            origins, chunks = zip(*map(parts.__getitem__, names), strict=True)
            translated[name] = torch.cat(chunks) if len(chunks) > 1 else chunks[0]
            used.update(origins)
    others = {name: tensor for name, tensor in tensors.items() if name not in used}
    return translated | others, f"{source}'s names"


def _take_apart(tensors: Mapping[str, Tensor], library: str) -> dict[str, tuple[str, Tensor]]:
    """Return the parts of a table by their common names, each with the name that it had."""
    parts: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        names = _parts(name, library)
        if tensor.ndim and len(tensor) % len(names) == 0:
            parts |= {part: (name, chunk) for part, chunk in zip(names, tensor.chunk(len(names)), strict=True)}
    return parts


def _library(names: Iterable[str]) -> str | None:
    names = list(names)
    libraries = [library for library, sign in _SIGNS.items() if any(map(sign.fullmatch, names))]
    return libraries[0] if len(libraries) == 1 else None


def _parts(name: str, library: str) -> list[str]:
    """Return the common names of a tensor: three where it stands for queries, keys and values."""
    if library != "timm":
        block, other = _BLOCKS[library].fullmatch(name), _OTHERS.fullmatch(name)
        if block is not None:
            name = f"blocks.{block[1]}.{_BLOCK_ENDS.get(block[2], block[2])}.{block[3]}"
        elif other is not None and other[1] in _ENDS:
            name = _ENDS[other[1]] + other[2]
    return [name.replace(".qkv.", f".{letter}.") for letter in "qkv"] if ".attn.qkv." in name else [name]


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
    """The named tensors of a file, and one line that describes where in it they were."""

    path: Path
    tensors: dict[str, Tensor]
    description: str = ""

    @classmethod
    def read(cls, path: str | Path) -> Checkpoint:
        """Read a ``.safetensors`` file or a torch file.

        The usual wrappings are undone: tables inside tables, and what parallel, compiled and training wrappers put
        before names. Things beside the tensors are left aside; in a torch file they are never made (``unpickle``).
        """
        path = Path(path)
        if not os.path.isfile(path):  # unlike Path.is_file, quiet about names that are too long
            raise CheckpointError(f"no checkpoint at {path}")
        table, nests, left_aside = _find_table(path, _content(path))
        for name, tensor in table.items():  # only plain numbers in memory
            kind = "on the meta device" if tensor.is_meta else "quantised" if tensor.is_quantized else ""
            if kind := kind or ("" if tensor.layout == torch.strided else "sparse"):
                raise CheckpointError(f"{path}: {name} is {kind}; save plain tensors")
        tensors, prefixes, others = _without_prefixes(path, table)
        facts = {
            f"{len(tensors)} tensors": True,
            f"from its {'.'.join(nests)}": nests,
            f"without {', '.join(prefixes)} before the names": prefixes,
            f"{_first_few(left_aside + others)} left aside": left_aside + others,
        }
        return cls(path, tensors, ", ".join(fact for fact, is_so in facts.items() if is_so))


def classes_in(tensors: Mapping[str, Tensor]) -> int | None:
    """Return how many classes the head in a table of weights has; ``None`` where no one head is to be seen."""
    counts = {len(t) for name, t in tensors.items() if t.ndim == 2 and len(t) and _HEADS.fullmatch(name)}
    return counts.pop() if len(counts) == 1 else None


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


def _find_table(path: Path, content: Any) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Return the table of tensors, the entries on the way to it, and what lies beside it."""
    nests: list[str] = []
    left_aside: list[str] = []
    while isinstance(content, Mapping):
        named = _named(content)
        table, nest = _named(content, Tensor), _nest(named)
        if table and (nest is None or len(table) >= len(named[nest])):
            if len(named) < len(content):
                break
            return table, nests, left_aside + _without(named, table)
        if nest is None:
            stubs = _named(named, Stub)
            content = next((stubs[key] for key in _NESTS if key in stubs), None)
            break
        nests.append(nest)
        left_aside += _without(named, (nest,))
        content = named[nest]
    if not isinstance(content, Stub):
        raise CheckpointError(f"{path} holds no table of named tensors")
    reason = "only its own code could make, and no code is run; save model.state_dict() instead"
    raise CheckpointError(f"{path} holds a pickled {one_line(content.name)}, which {reason}")


def _without(names: Iterable[str], others: Container[str]) -> list[str]:
    return [name for name in names if name not in others]


def _named(table: Mapping[Any, Any], kind: type = object) -> dict[str, Any]:
    return {key: value for key, value in table.items() if isinstance(key, str) and isinstance(value, kind)}


def _nest(named: Mapping[str, Any]) -> str | None:
    """Return the entry that holds the weights: the first by preference, or the only one with named tensors in it."""
    filled = [name for name in named if _has_tensors(named[name])]
    return next((nest for nest in _NESTS if nest in filled), filled[0] if len(filled) == 1 else None)


def _has_tensors(value: Any, depth: int = 4) -> bool:
    """Whether there are tensors under names in a table, or in tables inside it."""
    if not isinstance(value, Mapping) or not depth:
        return False
    values = _named(value).values()
    return any(isinstance(item, Tensor) or _has_tensors(item, depth - 1) for item in values)


def _without_prefixes(path: Path, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Take off everything before the names; where most stand under ``model.``, the rest, such as a loss, is left aside.

    Returns the tensors, what was taken off, and the names of the rest.
    """
    taken: dict[str, None] = {}
    others: list[str] = []
    while True:
        tensors = _without_wrappers(path, tensors, taken)
        owned = {owner: [name for name in tensors if name.startswith(owner)] for owner in _OWNERS}
        owner = next((owner for owner, names in owned.items() if 2 * len(names) > len(tensors)), None)
        if owner is None:
            return tensors, list(taken), others
        taken[owner] = None
        others += _without(tensors, owned[owner])
        tensors = {name.removeprefix(owner): tensors[name] for name in owned[owner]}


def _without_wrappers(path: Path, tensors: Mapping[str, Tensor], taken: dict[str, None]) -> dict[str, Tensor]:
    """Take off what parallel and compiled wrappers put before names, and note it."""
    origin: dict[str, str] = {}
    for name in tensors:
        bare_name = _WRAPPERS.sub(r"\1", name)
        taken.update({"_orig_mod.": None} if bare_name != name else {})
        while bare_name.startswith("module."):
            bare_name = _WRAPPERS.sub(r"\1", bare_name.removeprefix("module."))
            taken["module."] = None
        if origin.setdefault(bare_name, name) != name:
            raise CheckpointError(f"{path} holds both {origin[bare_name]} and {name}; which one is meant?")
    return {bare_name: tensors[name] for bare_name, name in origin.items()}


def fit(
    model: nn.Module,
    checkpoint: str | Path | Checkpoint,
    convert: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]] | None = None,
) -> None:
    """Load a checkpoint into a model, all tensors or none; what does not fit is named.

    Names of another library for the same architecture are translated where that can be done in one way only. What was
    taken from where is logged in one line.
    """
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.read(checkpoint)
    misfit = f"{checkpoint.path} does not fit {type(model).__name__}"
    try:
        tensors, language = translate(checkpoint.tensors, model)
        tensors = tensors if convert is None else convert(tensors, model)
    except Exception as error:  # a foreign file can break the conversion anywhere
        raise CheckpointError(f"{misfit}: {one_line(str(error))}") from error
    problems = [f"{len(names)} {what} ({_first_few(names)})" for what, names in _problems(tensors, model) if names]
    if problems:
        raise CheckpointError(f"{misfit}: {'; '.join(problems)}")
    model.load_state_dict(tensors)
    classes = classes_in(tensors)
    facts = [checkpoint.description, language and f"translated from {language}", classes and f"{classes} classes"]
    _log.info(one_line(f"weights from {checkpoint.path}: {', '.join(str(fact) for fact in facts if fact)}"))


def _problems(tensors: Mapping[str, Tensor], model: nn.Module) -> list[tuple[str, list[str]]]:
    wanted = model.state_dict()
    pairs = [(name, tensors[name], wanted[name]) for name in tensors if name in wanted]
    shapes = [f"{name} {tuple(t.shape)} for {tuple(w.shape)}" for name, t, w in pairs if t.shape != w.shape]
    types = [f"{name} {t.dtype} for {w.dtype}" for name, t, w in pairs if not _is_castable(t.dtype, w.dtype)]
    problems = {"missing": _without(wanted, tensors), "unexpected": _without(tensors, wanted)}
    return list({**problems, "of another shape": shapes, "of another type": types}.items())


def _is_castable(source: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers keep their meaning: floats of any width, otherwise the same kind."""
    return source == wanted or (source.is_floating_point and wanted.is_floating_point and source.itemsize >= 2)


def _first_few(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")


_MOST_NAMES = 20
"""Longer lists are named, not written out."""


@dataclass(frozen=True)
class LoadRecipe:
    """The arguments of ``load``, and the state of the model right after it, so that the call can be written down."""

    name: str
    options: Mapping[str, Any]
    weights: Any

    def holds(self, module: nn.Module) -> bool:
        """Whether the model is still what was loaded."""
        return bool(state(module) == self.weights)

    @property
    def is_random(self) -> bool:
        """Whether loading again gives other weights."""
        return self.options.get("pretrained") is False and "checkpoint" not in self.options

    def code(self) -> tuple[str, list[str]]:
        """Return the call in Python, and what each name in it stands for that cannot be written out."""
        literals = {option: _literal(value) for option, value in self.options.items()}
        words = [repr(self.name), *(f"{option}={literal or option}" for option, literal in literals.items())]
        names = [f"{option}: {_described(self.options[option])}" for option, text in literals.items() if text is None]
        return f"vt.load({', '.join(words)})", names


def _literal(value: Any) -> str | None:
    """Return Python that gives an equal value; ``None`` where there is none, or it is too long."""
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, torch.device | torch.dtype):
        return repr(str(value).removeprefix("torch."))
    if type(value) is Preprocess:
        return f"vt.{value!r}"
    simple = (str, bool, int, float, type(None))
    items = value if isinstance(value, list | tuple) and len(value) <= _MOST_NAMES else [value]
    return repr(value) if all(isinstance(item, simple) for item in items) else None


def _described(value: Any) -> str:
    count = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"your own {type(value).__name__}{count}"
