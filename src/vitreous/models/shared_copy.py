"""Shared copies: structural copies that share the weights, so that what a pass installs never touches the user's model.

Modules, and the containers, bound methods and partial functions that refer to them, are copied; parameters and buffers
become constants that view the same memory (training goes on and is seen); everything else is shared. Tensors that a
forward writes are the exception: a counter or a moving average is copied, and the user's does not move. A copy is
always in evaluation mode, takes milliseconds to make and belongs to whoever made it.

A ``VisionModel`` is verified: on its first inputs it is compared with the model's own forward. A subclass, a patched
``forward`` or a hook at the root may compute something else than the parts that are run; such a model is refused. How
tokens are pooled, which modules are not as their library built them, and which tensors a forward writes is found on the
same occasion, and found again when anything was changed that decides what a forward does (``structure``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from vitreous.errors import ModelChangedError, ModelError, one_line
from vitreous.models.description import deviations
from vitreous.models.identity import fingerprint_of, state

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel
    from vitreous.models.pooling import Pooling

T = TypeVar("T", bound="nn.Module | VisionModel")
F = TypeVar("F")

_INTERNAL = frozenset(vars(nn.Module()))


def settings_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module that are neither every module's nor set by its own forward."""
    written = _written_names.get(module, ())
    return ((name, value) for name, value in vars(module).items() if name not in _INTERNAL and name not in written)


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield a module's buffers and the tensors among its attributes, but not its parameters."""
    yield from (buffer for buffer in module._buffers.values() if buffer is not None)
    for name, value in vars(module).items():
        if name not in _INTERNAL:
            value = tuple(value.values()) if isinstance(value, dict) else value
            items = value if isinstance(value, list | tuple) else (value,)
            yield from (item for item in items if isinstance(item, Tensor) and not isinstance(item, nn.Parameter))


# -- is it the same model? ---------------------------------------------------------------------------------


def structure(model: nn.Module) -> list[int]:
    """Return a digest that changes with every module, hook, method of a class and setting; weights are no part of it.

    It is taken at every call, so it is made of identities, and cheap.
    """
    kinds, seen, digest, waiting = set[type](), set[int](), list[int](), [model]
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        kinds.add(type(module))
        attributes = vars(module)
        digest.append(hash((id(module), *(id(value) for _, value in settings_of(module)))))
        digest += (*attributes["_forward_hooks"], -1, *attributes["_forward_pre_hooks"], -1)
        waiting += [child for child in attributes["_modules"].values() if child is not None]
    bases = {base for kind in kinds for base in kind.__mro__ if base is not object}
    digest += [hash(tuple(map(id, vars(base).values()))) for base in sorted(bases, key=id)]
    digest += (*torch_module._global_forward_hooks, -1, *torch_module._global_forward_pre_hooks)
    return digest


class _Entry:
    """What was found about a model, while its structure is what it was.

    Identities are only unique among what lives, and containers change without a new one.
    """

    def __init__(self, model: nn.Module, now: list[int]) -> None:
        self.facts: dict[Any, Any] = {}
        self._structure = now
        self._held: list[Any] = []
        self._refs: list[ref[Any]] = []
        self._containers: list[tuple[ref[nn.Module], str]] = []
        containers = set[int]()
        for module in model.modules():
            self._hold(module)
            for name, value in settings_of(module):
                self._hold(value)
                if _contents(value) is not None and id(value) not in containers:
                    containers.add(id(value))
                    self._containers.append((ref(module), name))
        for base in {base for module in model.modules() for base in type(module).__mro__} - {object}:
            for value in vars(base).values():
                self._hold(value)
        for value in self._content():
            self._hold(value)
        self._digest = self._content_digest()

    def is_current(self, now: list[int]) -> bool:
        """Whether everything that was there still is, and containers hold what they held."""
        is_alive = self._structure == now and all(reference() is not None for reference in self._refs)
        return is_alive and self._digest == self._content_digest()

    def _hold(self, value: Any) -> None:
        if isinstance(value, _HELD):
            self._held.append(value)
        else:
            with suppress(TypeError):  # a plain list or dict, of which only the contents count
                self._refs.append(ref(value))

    def _content(self) -> Iterator[Any]:
        for owner, name in self._containers:
            module = owner()
            yield from _contents(vars(module).get(name)) or () if module is not None else ()

    def _content_digest(self) -> int:
        return hash(tuple(map(id, self._content())))


_HELD = (bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device, property, staticmethod)
"""What an entry keeps alive, so that no other object gets its identity; none of these refers to a model."""


def _contents(value: Any) -> Any:
    """Return what a container or a configuration holds; ``None`` for anything else."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | set):
        return value
    if isinstance(value, nn.Module | Tensor | type | FunctionType | MethodType | partial) or callable(value):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes.values() if isinstance(attributes, dict) else None


_entries: WeakKeyDictionary[nn.Module, _Entry] = WeakKeyDictionary()


def facts_about(model: nn.Module) -> dict[Any, Any]:
    """Return what was found about a model since anything changed that decides what its forward does.

    What is added must not refer to the model.
    """
    now, entry = structure(model), _entries.get(model)
    if entry is None or not entry.is_current(now):
        entry = _entries[model] = _Entry(model, now)
    return entry.facts


def remembered(model: nn.Module, key: Any, find: Callable[[], F]) -> F:
    """Return a fact about a model, which is found only where it is not known yet."""
    facts = facts_about(model)
    if key not in facts:
        fact = find()
        facts = facts_about(model)  # finding it may have told what a forward writes
        facts[key] = fact
    return facts[key]  # type: ignore[no-any-return]


# -- what a forward writes ---------------------------------------------------------------------------------

_written_tensors: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""The modules of verified models whose tensors a forward writes, by their paths."""
_written_names: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""Attributes of a module that its own forward sets: they change with every call and are no setting."""


class _Writes:
    """Finds what the forwards of a copy write: its tensors must be its own, and equal to those of the model."""

    def __init__(self, model: nn.Module, copy: nn.Module) -> None:
        self._pairs = list(zip(model.named_modules(), copy.modules(), strict=True))
        self._tensors = [
            (path, tensor, tensor._version, own)
            for (path, module), copied in self._pairs
            for own, tensor in zip(tensors_of(module), tensors_of(copied), strict=True)
        ]
        self._names = [{name: id(value) for name, value in vars(copied).items()} for _, copied in self._pairs]

    def tensors(self) -> set[str]:
        """Return the paths of the modules of which a tensor was changed in place."""
        return {path for path, t, version, own in self._tensors if t._version != version or not _is_equal(t, own)}

    def note_names(self) -> None:
        """Remember, for modules of the model, the attributes that a forward set to something else."""
        for ((_, module), copied), before in zip(self._pairs, self._names, strict=True):
            names = frozenset(name for name, value in vars(copied).items() if before.get(name) != id(value))
            if names:
                _written_names[module] = _written_names.get(module, frozenset()) | names


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of any layout hold the same values; where they cannot be compared, versions must do."""
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    try:
        return torch.equal(one, other)
    except (NotImplementedError, RuntimeError):
        return True


# -- copies ------------------------------------------------------------------------------------------------

_PLAIN = frozenset((bool, int, float, str, bytes, type(None), type, FunctionType, BuiltinFunctionType))
_EMPTY = frozenset((dict, OrderedDict, set))
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set, frozenset))


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
        name = type(original).__name__
        raise ModelError(f"{name} cannot be copied part by part, which watching it needs: {error}") from error


def _writing(model: nn.Module, all_modules: bool) -> Iterable[nn.Module]:
    """Return the modules whose tensors may be written: until a model is verified, all if there is code of a user's."""
    if all_modules or (model not in _written_tensors and deviations(model)):
        return model.modules()
    paths = _written_tensors.get(model)
    return [module for path, module in model.named_modules() if path in paths] if paths else ()


class _Copier:
    """Walks a model once; every object that is copied passes ``_note``."""

    def __init__(self, kinds: tuple[type, ...], trainable: bool, cloned: set[int]) -> None:
        self.kinds, self.trainable, self.cloned = kinds, trainable, cloned
        self.copies: dict[int, Any] = {}
        self.originals: list[Any] = []  # kept alive, so that no identity is used twice

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
            return value
        copy = self.copies.get(id(value))
        if copy is not None:
            return copy
        if isinstance(value, Tensor):
            return self._note(value, self._tensor(value))
        if kind in _CONTAINERS:
            return self._container(value)
        if isinstance(value, self.kinds):
            return self._object(value)
        if isinstance(value, MethodType):
            owner = self(value.__self__)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        return partial(self(value.func), *self(value.args), **self(value.keywords)) if kind is partial else value

    def _note(self, original: Any, copy: Any) -> Any:
        self.copies[id(original)] = copy
        self.originals.append(original)
        return copy

    def _container(self, value: Any) -> Any:
        """Copy a container; one that can be changed is noted first, for what is inside may refer to it."""
        kind = type(value)
        if isinstance(value, dict):
            copy = self._note(value, kind())
            for key, item in list(value.items()):
                copy[key] = item if type(item) in _PLAIN else self(item)
            return copy
        if kind is list:
            grown = self._note(value, [])
            grown.extend(self(item) for item in list(value))
            return grown
        return self._note(value, kind(self(item) for item in list(value)))

    def _object(self, value: Any) -> Any:
        copy = self._note(value, object.__new__(type(value)))
        attributes = vars(copy)
        attributes.update(vars(value))
        for name, attribute in attributes.items():  # most of what a module has: settings, hooks that nobody set
            kind = type(attribute)
            if kind not in _PLAIN:
                attributes[name] = kind() if kind in _EMPTY and not attribute else self(attribute)
        if isinstance(value, nn.Module):
            attributes["training"] = False
        return copy

    def _tensor(self, value: Tensor) -> Tensor:
        # a model made in inference mode has weights that no graph may hold: only those are copied
        same = value.clone() if value.is_inference() or id(value) in self.cloned else value.detach()
        if isinstance(value, nn.Parameter):
            return nn.Parameter(same, requires_grad=self.trainable and value.requires_grad)
        return same


@contextmanager
def overridden(*overrides: tuple[nn.Module, str, Any]) -> Iterator[None]:
    """Give modules of a shared copy other attributes for a while, such as another ``forward``."""
    before = [(vars(module), name, vars(module).get(name)) for module, name, _ in overrides]
    for module, name, value in overrides:
        vars(module)[name] = value
    try:
        yield
    finally:
        for attributes, name, own in before:
            attributes.pop(name)
            attributes.update({} if own is None else {name: own})


@contextmanager
def exact_pass(model: VisionModel, gradients: bool = False) -> Iterator[None]:
    """Run what is inside in the model's own precision and outside inference mode, whatever the caller's modes are."""
    no_autocast = torch.autocast(model.device.type, enabled=False)
    with torch.inference_mode(False), torch.set_grad_enabled(gradients), no_autocast:
        yield


# -- verification ------------------------------------------------------------------------------------------


class _Findings(NamedTuple):
    """What was found about a model when it was verified."""

    pooling: Pooling | None
    """``None`` where what the adapter says holds."""
    deviations: dict[str, str]
    layers: frozenset[int]


def verify(model: VisionModel, inputs: Tensor) -> None:
    """Compare the parts with their model on the first of these images, unless both were found equal before.

    The copy that passes run on is held against the model too, if that is in evaluation mode and its forward writes
    nothing. Cost: two or three forwards of one image, once for each structure of a model and size of its inputs.
    """
    key = ("verified", type(model), model.identity_extras, tuple(inputs.shape[1:]), inputs.dtype)
    findings = facts_about(model.module).get(key)
    if findings is None:
        findings = _verify(model, inputs[:1].detach())
        # a head of zeros, which reads no token, may be trained
        if findings.pooling is not None or model.has_own_pooling:
            facts_about(model.module)[key] = findings
    if model.deviations is not findings.deviations:
        model.pooling = findings.pooling or model.pooling
        model.deviations, model.deviating_layers = findings.deviations, findings.layers


def _verify(model: VisionModel, image: Tensor) -> _Findings:
    with exact_pass(model):
        image = image.clone() if image.is_inference() else image
        seen, other = (model.shared_copy(own_tensors=True) for _ in range(2))
        by_parts, by_model = (_Writes(model.module, copy.module) for copy in (seen, other))
        logits = seen.forward_head(seen.forward_blocks(seen.embed(image)))
        with failing_forward(model.name, "one image"):
            expected = other.reference_forward(image)
        _compare(model, logits, expected, "its own forward")
        written = _written_tensors[model.module] = frozenset(by_parts.tensors() | by_model.tensors())
        by_model.note_names()
        has_state = bool(written) or any(module in _written_names for module in model.module.modules())
        if not has_state and not any(module.training for module in model.module.modules()):
            with failing_forward(model.name, "one image"):
                expected = model.reference_forward(image)
            _compare(model, logits, expected, "the model itself, called as it is,")
    pooling = None if model.has_own_pooling else model.read_pooling()
    odd = deviations(model.module)
    return _Findings(pooling, odd, _deviating_layers(model, odd))


def _deviating_layers(model: VisionModel, odd: Iterable[str]) -> frozenset[int]:
    modules = {id(model.module.get_submodule(path)) for path in odd}
    if not modules:
        return frozenset()
    try:
        blocks = [model.get_block(layer) for layer in range(model.depth)]
    except ModelError:  # it does not tell its blocks
        return frozenset(range(model.depth))
    return frozenset(n for n, block in enumerate(blocks) if any(id(module) in modules for module in block.modules()))


def gap(logits: Tensor, expected: Tensor) -> tuple[float, bool]:
    """Return the largest difference of logits, and whether it is more than rounding."""
    one, other = logits.double(), expected.double()
    same = (one == other) | (one.isnan() & other.isnan())  # a class may be shut out with minus infinity
    difference = float(torch.where(same, 0.0, (one - other).abs()).max())
    size = max(1.0, float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 1.0)
    return difference, not difference <= rounding(expected.dtype, expected.device.type) * size


def rounding(dtype: torch.dtype, device: str) -> float:
    """Return by how much equal sums may differ: a GPU may multiply float32 in TF32, with ten bits behind the point."""
    if dtype in (torch.float16, torch.bfloat16):
        return 1e-2
    short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return 2e-3 if dtype == torch.float32 and device == "cuda" and short else 1e-4


@contextmanager
def failing_forward(name: str, image: str) -> Iterator[None]:
    """Turn what a forward of the user's own raises, which can be anything, into one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise ModelError(f"{name}: its own forward fails on {image} ({reason})") from error


def _compare(model: VisionModel, logits: Tensor, expected: Any, forward: str) -> None:
    if not isinstance(expected, Tensor) or expected.shape != logits.shape:
        output = list(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
        parts = f"its parts {list(logits.shape)}; explain the model inside"
        raise ModelError(f"{model.name}: {forward} gives {output}, {parts}")
    difference, is_different = gap(logits, expected)
    if is_different:
        of_model, of_parts = (int(output[0].float().argmax()) for output in (expected, logits))
        raise ModelError(
            f"{model.name} computes something else than its parts: {forward} says class {of_model}, its blocks and "
            f"head class {of_parts} (logits differ by {difference:.1e}); a subclass, a patched forward or a hook "
            "changes it"
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
