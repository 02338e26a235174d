"""Twins: structural copies that share the weights, so that what a pass installs never touches the user's modules.

Modules, and the containers, bound methods and partial functions that refer to them, are copied; parameters and buffers
become constants that view the same memory (training goes on and is seen); everything else is shared. Tensors that a
forward writes are the exception: a counter or a moving average is copied, and the user's does not move. A twin is
always in evaluation mode, takes milliseconds to make and belongs to whoever made it: hooks and flags on it are nobody
else's.

A view is proven: on its first inputs it is compared with the model's own forward.

A subclass, a patched ``forward`` or a hook at the root may compute something else than the parts that a view runs. What
a model says is then not what would be explained, and it is refused. How tokens are pooled, which modules are not as
their library built them, and which tensors a forward writes is found on the same occasion. All of it is found again
when anything was changed that decides what a forward does: ``changes.structure``, compared at every call.

Code from elsewhere runs on copies that share the user's weights: a guard says so where it changed them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelChangedError, ModelError, one_line
from vitreous.models.identity import fingerprint_of, state
from vitreous.models.modifications import Watch, Writes, deviations, note_state, state_names, structure, tensors_of
from vitreous.models.pooling import Pooling

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel

__all__ = [
    "gap",
    "verify",
    "check_model_unchanged",
    "rounding",
    "copy_structure",
    "writers",
]

writers: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""The modules of verified models whose tensors a forward writes, by their paths."""

_PLAIN = frozenset((bool, int, float, str, bytes, type(None), type, FunctionType, BuiltinFunctionType))
_BARE = frozenset((dict, OrderedDict, set))

T = TypeVar("T", bound="nn.Module | VisionModel")


def copy_structure(original: T, *kinds: type, trainable: bool = False, own_tensors: bool = False) -> T:
    """Return a copy of a module, or of an object of ``kinds`` that refers to modules.

    ``trainable`` keeps the flags of the parameters: gradients then gather in the copy. ``own_tensors`` copies all
    tensors that are no parameters, and not only those that a forward is known to write.
    """
    model = original if isinstance(original, nn.Module) else original.module
    try:
        with torch.inference_mode(False), torch.no_grad():
            cloned = {id(tensor) for module in _writing(model, own_tensors) for tensor in tensors_of(module)}
            return _Copier((nn.Module, *kinds), trainable, cloned)(original)  # type: ignore[no-any-return]
    except (TypeError, RuntimeError, AttributeError) as error:
        what = type(original).__name__
        raise ModelError(f"{what} cannot be copied part by part, which watching it needs: {error}") from error


def _writing(model: nn.Module, every: bool) -> Iterable[nn.Module]:
    """Return the modules whose tensors may be written: until a model is verified, all if there is code of a user's."""
    if every or (model not in writers and deviations(model)):
        return model.modules()
    paths = writers.get(model)
    return [module for path, module in model.named_modules() if path in paths] if paths else ()


class _Copier:
    def __init__(self, kinds: tuple[type, ...], trainable: bool, cloned: set[int]) -> None:
        self.kinds, self.trainable, self.cloned = kinds, trainable, cloned
        self.known: dict[int, Any] = {}
        self.seen: list[Any] = []  # kept alive, so that no identity is used twice

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
            return value
        found = self.known.get(id(value))
        if found is not None:
            return found
        if isinstance(value, Tensor):
            return self._note(value, self._tensor(value))
        if kind in (dict, OrderedDict):
            made = self._note(value, kind())
            for key, each in list(value.items()):
                made[key] = each if type(each) in _PLAIN else self(each)
            return made
        if kind is list:
            grown = self._note(value, [])
            grown.extend(self(each) for each in list(value))
            return grown
        if kind in (tuple, set, frozenset):
            return self._note(value, kind(self(each) for each in list(value)))
        if isinstance(value, self.kinds):
            return self._object(value)
        if isinstance(value, MethodType):
            owner = self(value.__self__)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if kind is partial:
            return partial(self(value.func), *self(value.args), **self(value.keywords))
        return value

    def _note(self, value: Any, made: Any) -> Any:
        self.known[id(value)] = made
        self.seen.append(value)
        return made

    def _object(self, value: Any) -> Any:
        made = self._note(value, object.__new__(type(value)))
        attributes = vars(made)
        attributes.update(vars(value))
        for name, attribute in attributes.items():  # most of what a module has: settings, hooks that nobody set
            kind = type(attribute)
            if kind in _PLAIN:
                continue
            attributes[name] = kind() if kind in _BARE and not attribute else self(attribute)
        if isinstance(value, nn.Module):
            attributes["training"] = False
        return made

    def _tensor(self, value: Tensor) -> Tensor:
        # a model made in inference mode has weights that no graph may hold: only those are copied
        same = value.clone() if value.is_inference() or id(value) in self.cloned else value.detach()
        if isinstance(value, nn.Parameter):
            return nn.Parameter(same, requires_grad=self.trainable and value.requires_grad)
        return same


class _Record(NamedTuple):
    """What was found about a model when it was verified."""

    structure: list[int]
    watch: Watch
    pooling: Pooling | None
    """``None`` where what the view says holds."""
    deviations: dict[str, str]
    layers: frozenset[int]


_proven: WeakKeyDictionary[nn.Module, dict[Any, _Record]] = WeakKeyDictionary()


def verify(model: VisionModel, inputs: Tensor) -> None:
    """Compare the view with its model on the first of these images, unless both were found equal before.

    The copy that passes run on is held against the model too, if that is in evaluation mode and its forward writes
    nothing. Cost: two or three forwards of one image, once for each structure of a model and size of its inputs.
    """
    key = (type(model), model.identity_extras, tuple(inputs.shape[1:]), inputs.dtype)
    record, now = _proven.get(model.module, {}).get(key), structure(model.module)
    if record is None or record.structure != now or not record.watch.holds():
        record = _verify(model, inputs[:1].detach())
        records = {k: r for k, r in _proven.get(model.module, {}).items() if r.structure == record.structure}
        if record.pooling is not None or model.has_own_pooling:  # a head of zeros may be trained, and read tokens then
            _proven[model.module] = {**records, key: record}
    if model.deviations is not record.deviations:
        model.pooling, model.deviations, model.deviating_layers = (
            record.pooling or model.pooling,
            record.deviations,
            record.layers,
        )


def _verify(model: VisionModel, image: Tensor) -> _Record:
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(image.device.type, enabled=False):
        image = image.clone() if image.is_inference() else image
        seen, other = (model.shared_copy(own_tensors=True) for _ in range(2))
        written = [Writes(model.module, each.module) for each in (seen, other)]
        logits = seen.forward_head(seen.forward_blocks(seen.embed(image)))
        _compare(model, logits, _own(other, image), "its own forward")
        tensors = frozenset().union(*(each.tensors() for each in written))
        for module, names in written[1].names().items():
            note_state(module, names)
        writers[model.module] = tensors
        has_state = bool(tensors) or any(module in state_names for module in model.module.modules())
        if not has_state and not any(module.training for module in model.module.modules()):
            _compare(model, logits, _own(model, image), "the model itself, called as it is,")
    odd = deviations(model.module)
    pooling = None if model.has_own_pooling else model.read_pooling()
    return _Record(structure(model.module), Watch(model.module), pooling, odd, _layers(model, odd))


def _layers(model: VisionModel, odd: dict[str, str]) -> frozenset[int]:
    """Return the blocks in which a module is not as its library built it."""
    if not odd:
        return frozenset()
    modules = {id(model.module.get_submodule(path)) for path in odd}
    try:
        blocks = [model.get_block(layer) for layer in range(model.depth)]
    except ModelError:  # it does not tell its blocks
        return frozenset(range(model.depth))
    return frozenset(layer for layer, block in enumerate(blocks) if any(id(m) in modules for m in block.modules()))


def gap(logits: Tensor, expected: Tensor) -> tuple[float, bool]:
    """Return the largest difference of logits, and whether it is more than rounding."""
    one, other = logits.double(), expected.double()
    same = (one == other) | (one.isnan() & other.isnan())  # a class may be shut out with minus infinity
    off = float(torch.where(same, 0.0, (one - other).abs()).max())
    size = max(1.0, float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 1.0)
    return off, not off <= rounding(expected.dtype, expected.device.type) * size


def rounding(dtype: torch.dtype, device: str) -> float:
    """Return by how much equal sums may differ: a GPU may multiply float32 in TF32, with ten bits behind the point."""
    if dtype in (torch.float16, torch.bfloat16):
        return 1e-2
    short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return 2e-3 if dtype == torch.float32 and device == "cuda" and short else 1e-4


def _own(model: VisionModel, image: Tensor) -> Tensor:
    try:
        return model.reference_forward(image)
    except Exception as error:  # a forward of the user's own can fail anywhere
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise ModelError(f"{model.name}: its own forward fails on one image ({reason})") from error


def _compare(model: VisionModel, logits: Tensor, expected: Any, whose: str) -> None:
    if not isinstance(expected, Tensor) or expected.shape != logits.shape:
        told = list(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
        raise ModelError(
            f"{model.name}: {whose} gives {told}, its parts {list(logits.shape)}; explain the model inside"
        )
    off, different = gap(logits, expected)
    if different:
        said, would = (int(each[0].float().argmax()) for each in (expected, logits))
        raise ModelError(
            f"{model.name} computes something else than its parts: {whose} says class {said}, its blocks and head "
            f"class {would} (logits differ by {off:.1e}); a subclass, a patched forward or a hook changes it"
        )


@contextmanager
def check_model_unchanged(vision_model: VisionModel, name: str, content: bool = False) -> Iterator[None]:
    """Raise a ``ModelChangedError`` if what runs inside changes the weights, buffers or modules of a model.

    Weights are known by their version counters and a few of their values, with ``content`` by all of them. Nothing is
    put back: what was there before is known to the owner of the model alone. An error that is raised inside gives way,
    since whoever catches it would go on with another model.
    """

    def snapshot() -> tuple[Any, Any]:
        model = vision_model.module
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return structure(model), fingerprint_of(tensors) if content else state(model)

    before = snapshot()
    try:
        yield
    finally:
        after = snapshot()
        if after != before:
            part = "modules, hooks or methods" if after[0] != before[0] else "weights or buffers"
            raise ModelChangedError(
                f"{name} changed the {part} of {vision_model.name}, which all methods share: no number made from now "
                "on would be of the model that was given; load the model again, and let the method work on a deep copy"
            )
