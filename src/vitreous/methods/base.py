"""The contract of a method: which pass it needs, and how a map is read out of it.

What combinators of one method share: unless they say otherwise, they are like their base.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.code_digest import code_digest, is_external, is_unknown
from vitreous.errors import MapError, ModelError, VitreousError, VitreousWarning
from vitreous.methods.ops import upcast
from vitreous.models import VisionModel, wrap
from vitreous.models.shared_copy import check_model_unchanged
from vitreous.registry import check_choice, written
from vitreous.tracing import ActivationCache, Context, Pass, Target, TargetSpec

if TYPE_CHECKING:
    from vitreous.methods.registry import MethodInfo

__all__ = [
    "Attribution",
    "Method",
    "BaseWrapper",
    "compute_attributions",
    "checked_attribution",
    "computed",
    "layer_terms",
    "prepare",
    "refuse_unfit",
    "resized",
    "resolve_layer",
    "to_grid",
]


class Attribution(NamedTuple):
    """A raw signed map ``[B, h, w]`` and the named second results that came with it, images first."""

    map: Tensor
    extras: dict[str, Tensor]


class Method:
    """Base of all methods; subclasses are frozen dataclasses whose fields are the parameters.

    Most methods read one pass: they say which (``asks``) and how (``read``), and share it with whoever asks the same.
    A method with *layer terms* also reads its map layer by layer (``layer_pass``, ``layer_maps``): ``plus`` is free.
    A method that needs other inputs (noisy copies, a path) overrides ``compute`` and forks the session.
    """

    info: ClassVar[MethodInfo]
    layered: ClassVar[bool] = False
    flat: ClassVar[bool] = False
    """Whether a map that is the same everywhere is what it means."""
    conventional: ClassVar[bool] = False
    """Whether the sign of its map is a mere convention."""
    grid: str = "token"
    """Where the map lives: on the patch ``"token"`` grid or on ``"pixel"`` s."""

    @property
    def class_specific(self) -> bool:
        """Whether the map depends on the class."""
        return self.info.class_specific

    @property
    def signed(self) -> bool:
        """Whether below zero means against the class: not if the sign of a part is a convention, or no class meant."""
        return self.class_specific and not any(part.conventional for part in self.parts())

    @property
    def models(self) -> str:
        """Which models it is for, with these parameters: as ``Info.models``."""
        return self.info.models

    @property
    def cost(self) -> tuple[float, float]:
        """Forwards and backwards per image."""
        return self.info.cost

    def forwards(self, view: VisionModel) -> float:
        """How many inputs this method runs per image on this model: what a progress bar counts."""
        return max(1.0, self.cost[0])

    def held(self, view: VisionModel) -> int:
        """How many maps of its grid exist for each image when it is done, extras included."""
        return 1

    def asks(self, view: VisionModel) -> tuple[Pass, ...]:
        """Return every pass over the session's own inputs that is known beforehand, so that it can be shared."""
        return ()

    def single_pass(self, view: VisionModel) -> Pass:
        """Return the one pass that ``read`` needs."""
        asks = self.asks(view)
        if len(asks) != 1:
            raise VitreousError(f"{self.info.name} must define asks with one pass, or compute")
        return asks[0]

    @property
    def own_value(self) -> str | None:
        """Which value of the class it explains, whatever was asked for; ``None`` where it explains what was asked."""
        return None

    def values(self, asked: str) -> tuple[str, ...]:
        """Return the values of the class that its map explains, its parts' together, when one was asked for.

        Parts that are the same for every class explain none.
        """
        if self.own_value is not None:
            return (self.own_value,)
        inner = [value for base in self.inner() if base.class_specific for value in base.values(asked)]
        return tuple(dict.fromkeys(inner)) or (asked,)

    def read(self, trace: ActivationCache) -> Tensor:
        """Return the map from that pass."""
        raise VitreousError(f"{self.info.name} must define read or compute")

    def layer_pass(self, view: VisionModel, layers: Sequence[int]) -> Pass:
        """Return the pass that holds the layer terms of these layers."""
        raise VitreousError(f"{self.info.name} has no layer terms")

    def layer_maps(self, trace: ActivationCache, layers: Sequence[int]) -> list[Tensor]:
        """Return one map per layer."""
        raise VitreousError(f"{self.info.name} has no layer terms")

    def at_layer(self, view: VisionModel, layer: int) -> Method | None:
        """Return the same method at another layer, for sums over layers; ``None`` where there is nothing to see.

        Only methods that look at one layer, and have no layer terms from a shared pass, define it.
        """
        raise VitreousError(f"{self.info.name} does not look at one layer")

    @property
    def moves(self) -> bool:
        """Whether it looks at one layer and can look at another (``at_layer``)."""
        return type(self).at_layer is not Method.at_layer

    def compute(self, session: Context) -> Attribution:
        """Return the answer for all inputs of a session."""
        return Attribution(self.read(session.trace(self.single_pass(session.view))), {})

    @overload
    def attribute(
        self,
        model: VisionModel | nn.Module,
        inputs: Tensor,
        target: TargetSpec = ...,
        *,
        against: TargetSpec = ...,
        value: str = ...,
        grid: str | None = ...,
        extras: Literal[False] = ...,
        seed: int = ...,
        internal_batch_size: int | None = ...,
        memory: float | None = ...,
        classes: Sequence[int | str] | None = ...,
        among: Any = ...,
    ) -> Tensor: ...

    @overload
    def attribute(
        self,
        model: VisionModel | nn.Module,
        inputs: Tensor,
        target: TargetSpec = ...,
        *,
        against: TargetSpec = ...,
        value: str = ...,
        grid: str | None = ...,
        extras: Literal[True],
        seed: int = ...,
        internal_batch_size: int | None = ...,
        memory: float | None = ...,
        classes: Sequence[int | str] | None = ...,
        among: Any = ...,
    ) -> tuple[Tensor, dict[str, Tensor]]: ...

    def attribute(
        self,
        model: VisionModel | nn.Module,
        inputs: Tensor,
        target: TargetSpec = None,
        *,
        against: TargetSpec = None,
        value: str = "logit",
        grid: str | None = None,
        extras: bool = False,
        seed: int = 0,
        internal_batch_size: int | None = None,
        memory: float | None = None,
        classes: Sequence[int | str] | None = None,
        among: Any = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the raw signed map ``[B, h, w]`` of preprocessed inputs ``[B, 3, H, W]``.

        ``target``: a class index or label, one per image, ``None`` for the prediction, or a callable on the logits.
        ``against``: explain the target rather than these. ``value``: ``"logit"``, ``"prob"`` or ``"logprob"``.
        ``grid``: ``"token"`` or ``"pixel"`` instead of the method's own. ``extras=True`` also returns second results.
        ``classes`` restricts the softmax; ``among`` are the classes that ``var`` compares, one list or one per image.
        """
        looked_at = wrap(model)
        if not isinstance(inputs, Tensor):
            raise ModelError(f"attribute takes a tensor, got {type(inputs).__name__}; explain takes pictures and paths")
        looked_at.check_inputs(inputs)
        aim = Target.of(looked_at, len(inputs), target, against, value, classes, among)
        session = Context(looked_at, inputs, aim, seed, internal_batch_size, memory, grid=grid)
        (answered,) = compute_attributions(session, [self])
        shown = to_grid(answered.map, grid, looked_at, inputs)
        return (shown, answered.extras) if extras else shown

    @property
    def spelling(self) -> str:
        """The shortest spelling that gives this method again."""
        parts: list[str] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, field.name)
            inner = _methods(given)
            if inner:
                parts.extend(each.spelling for each in inner)
            elif given != field.default:
                parts.append(f"{field.name}={written(given)}")
        return self.info.name + (f"({', '.join(parts)})" if parts else "")

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, bases by their spelling, and the notes of all parts."""
        values = self._fields()
        spelled = {name: [each.spelling for each in _methods(given)] for name, given in values.items()}
        values |= {
            name: bases if isinstance(values[name], tuple) else bases[0] for name, bases in spelled.items() if bases
        }
        inner = {part.spelling: part.notes for part in self.parts()[1:]}
        below = {f"{name} of {part}": note for part, notes in inner.items() for name, note in notes.items()}
        return {**values, **self.notes, **below}

    @property
    def fingerprint(self) -> str:
        """A digest of all that its numbers depend on: parameters and revisions of its parts, and what they refer to.

        Parts from elsewhere count with their code; where that cannot be known, this equals no other digest.
        """
        parts = self.parts()
        codes = {n: code_digest((type(p), p._fields())) for n, p in enumerate(parts) if is_external(type(p))}
        told = [(p.info.name, p.info.revision, codes.get(n, p.settings), p.ingredients) for n, p in enumerate(parts)]
        text = json.dumps(told, sort_keys=True, default=str)
        unknown = next((code for code in codes.values() if is_unknown(code)), None)
        return unknown or hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def ingredients(self) -> dict[str, str]:
        """Digests of what the parameters refer to by name, such as the content of a file of statistics."""
        return {}

    @property
    def notes(self) -> dict[str, Any]:
        """What an explanation has to record besides the parameters, such as the source of statistics."""
        return {}

    def inner(self) -> list[Method]:
        """The methods that its parameters hold."""
        return [each for given in self._fields().values() for each in _methods(given)]

    def _fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def parts(self) -> list[Method]:
        """This method and every method it is composed of."""
        return [self, *(part for base in self.inner() for part in base.parts())]

    def __str__(self) -> str:
        return self.spelling


def prepare(session: Context, methods: Iterable[Method]) -> None:
    """Run every pass that these methods are known to need, equal ones once."""
    session.prepare([ask for method in methods for ask in method.asks(session.view)])


def refuse_unfit(methods: Iterable[Method], view: VisionModel) -> None:
    """Refuse methods that follow what this model does not have, or that are made of such."""
    if view.attention != "nowhere" or view.has_residual_stream:
        return
    for method in methods:
        for part in method.parts():
            if part.models in ("transformers", "ViT"):
                raise ModelError(
                    f"{part.info.name} is for transformers: {view.name} has no attention, and no stream of tokens that "
                    f"all its layers add to; use a method that is for all models, such as gradcam"
                )


def compute_attributions(session: Context, methods: Iterable[Method], check: bool = True) -> list[Attribution]:
    """Compute several methods over one session, their shared passes run once; refuse or flag maps that mean nothing.

    Without ``check`` such maps are returned as they are, for those who count them.
    """
    methods = list(methods)
    refuse_unfit(methods, session.view)
    with torch.autocast(session.inputs.device.type, enabled=False):  # the read-outs too keep their precision
        prepare(session, methods)
        raw = [computed(session, method) for method in methods]
    answers = [Attribution(upcast(r.map.detach()), {k: v.detach() for k, v in r.extras.items()}) for r in raw]
    for method, each in zip(methods, answers, strict=True) if check else ():
        _check(method, each.map)
    return answers


def to_grid(maps: Tensor, grid: str | None, looked_at: VisionModel, inputs: Tensor) -> Tensor:
    """Bring maps to the grid asked for: pixels are summed into patches, patches interpolated to pixels."""
    if grid is None or inputs.ndim != 4:
        return maps
    check_choice("grid", grid, ("token", "pixel"))
    size = tuple(inputs.shape[-2:])
    if grid == "token":
        return resized(maps, looked_at.grid(inputs)) if tuple(maps.shape[-2:]) == size else maps
    return resized(maps, size)


def computed(session: Context, method: Method) -> Attribution:
    """Return what a method finds in a session, computed once however many others are made of it."""
    if method not in session.memo:
        session.memo[method] = checked_attribution(session, method)
    answer: Attribution = session.memo[method]
    return answer


def checked_attribution(session: Context, method: Method) -> Attribution:
    """Compute a method over a session, and refuse an answer that is not one map for each of its inputs.

    A method from elsewhere must also leave the weights as they are.
    """
    if is_external(type(method)):
        with check_model_unchanged(session.view.source_model or session.view, method.spelling):
            answer = method.compute(session)
    else:
        answer = method.compute(session)
    name, batch = method.spelling, len(session.inputs)
    if not isinstance(answer, Attribution):
        raise MapError(f"{name}: compute must return an Answer, not {type(answer).__name__}")
    check_maps(name, answer.map, batch)
    if not isinstance(answer.extras, Mapping):
        raise MapError(f"{name}: the extras of an Answer are a mapping of names, not {type(answer.extras).__name__}")
    for key, extra in answer.extras.items():
        if not isinstance(extra, Tensor) or extra.ndim == 0 or len(extra) != batch:
            raise MapError(f"{name}: the extra {key!r} is {_shape_text(extra)}, not a tensor of {batch} images")
    return answer


def layer_terms(method: Method, trace: ActivationCache, layers: Sequence[int]) -> list[Tensor]:
    """Return the layer terms of a method, and refuse what is not one map per layer and image."""
    terms = list(method.layer_maps(trace, layers))
    if len(terms) != len(layers):
        raise MapError(f"{method.spelling}: read_layers returned {len(terms)} terms for {len(layers)} layers")
    for term in terms:
        check_maps(method.spelling, term, trace.batch)
    return terms


def check_maps(name: str, maps: Any, batch: int) -> None:
    """Refuse what is not a real floating-point map ``[h, w]`` for each of ``batch`` images."""
    if not isinstance(maps, Tensor) or not maps.is_floating_point() or maps.ndim != 3 or 0 in maps.shape:
        raise MapError(f"{name} returned {_shape_text(maps)}; maps are a floating-point tensor [B, h, w]")
    if len(maps) != batch:
        raise MapError(f"{name} returned {len(maps)} maps for {batch} images")


def _shape_text(value: Any) -> str:
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Bring maps ``[B, h, w]`` to another size: finer ones are summed over the area of a cell, coarser ones enlarged.

    A value that lies across a border of cells gives each its part, so the sum over the map stays.
    """
    given = tuple(maps.shape[-2:])
    if given == tuple(size):
        return maps
    if given[0] >= size[0] and given[1] >= size[1]:
        if given[0] % size[0] == given[1] % size[1] == 0:
            cells = (size[0], given[0] // size[0], size[1], given[1] // size[1])
            return maps.reshape(-1, *cells).sum(dim=(2, 4))
        down, across = (_parts(fine, coarse).to(maps) for fine, coarse in zip(given, size, strict=True))
        return down @ maps @ across.T
    return F.interpolate(maps[:, None], size=list(size), mode="bilinear", align_corners=False)[:, 0]


def _parts(fine: int, coarse: int) -> Tensor:
    """Return how much of each of ``fine`` values lies in each of ``coarse`` cells, ``[coarse, fine]``."""
    edges = torch.arange(coarse + 1, dtype=torch.float64) * (fine / coarse)
    values = torch.arange(fine, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], values + 1) - torch.maximum(edges[:-1, None], values)
    return overlap.clamp(min=0)


def resolve_layer(view: VisionModel, layer: int) -> int:
    """Return a layer counted from the front; negative numbers count from the end."""
    resolved = layer + view.depth if layer < 0 else layer
    if not 0 <= resolved < view.depth:
        raise ModelError(f"layer {layer} is outside 0..{view.depth - 1} of {view.name}")
    return resolved


def _methods(given: Any) -> tuple[Method, ...]:
    """The methods that a parameter holds: itself, or the members of a tuple."""
    members = given if isinstance(given, tuple) else (given,)
    return tuple(each for each in members if isinstance(each, Method))


def _check(method: Method, maps: Tensor) -> None:
    if not torch.isfinite(maps).all():
        bad = int((~torch.isfinite(maps)).flatten(1).any(dim=1).sum())
        raise MapError(f"{method.spelling} gave values that are not finite for {bad} of {len(maps)} images")
    if method.flat or maps[0].numel() == 1:
        return
    flat = (maps.amax(dim=(1, 2)) == maps.amin(dim=(1, 2))).nonzero().flatten().tolist()
    if flat:
        kind = "zero" if bool((maps[flat[0]] == 0).all()) else "constant"
        text = f"{method.spelling}: the map of image {flat[0]} is {kind} everywhere; it explains nothing"
        warnings.warn(text, VitreousWarning, stacklevel=3)


class BaseWrapper(Method):
    """A method made of one other."""

    base: Method

    @property
    def grid(self) -> str:  # type: ignore[override]
        return self.base.grid

    @property
    def class_specific(self) -> bool:
        return self.base.class_specific

    @property
    def cost(self) -> tuple[float, float]:
        return self.base.cost

    def forwards(self, view: VisionModel) -> float:
        return self.base.forwards(view)
