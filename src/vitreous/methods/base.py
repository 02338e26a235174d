"""The contract of a method: which records it needs of a pass, and how a map is read out of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn

from vitreous.code_digest import code_digest, is_external, is_unknown
from vitreous.errors import MapError, ModelError, VitreousError, VitreousWarning
from vitreous.methods.ops import compute_once, resize_map
from vitreous.models import VisionModel, wrap
from vitreous.models.shared_copy import check_model_unchanged
from vitreous.registry import check_choice, check_parameters, format_value
from vitreous.tracing import ActivationCache, Context, Pass, Record, Reduce, Target, TargetSpec, resolve_layer, upcast
from vitreous.tracing.rules import GRADIENT, Composite

if TYPE_CHECKING:
    from vitreous.methods.registry import MethodInfo


class Attribution(NamedTuple):
    """A map for each image of a batch, and what else came with it.

    Parameters
    ----------
    map : Tensor
        The raw signed map ``[B, h, w]``, on the method's own grid.
    extras : dict of str to Tensor
        Second results by name, images first.
    """

    map: Tensor
    extras: dict[str, Tensor]


class Method:
    """Base of all methods; subclasses are frozen dataclasses whose fields are the parameters.

    Most methods need one pass over the images: they name its ``records`` (and its ``composite``), and read the map out
    of the cache in ``attribution``; equal records of several methods are answered once. A method that needs other
    inputs (noisy copies, a path) defines ``compute`` instead. A method with a map at every block is a
    ``LayerwiseMethod``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from vitreous.tracing import Record
    >>> def token_norm(a):
    ...     return a.value.norm(dim=-1)
    >>> @dataclass(frozen=True)
    ... class TokenNorm(vt.Method):
    ...     layer: int = -1
    ...
    ...     def records(self, model):
    ...         return [Record("resid_post", token_norm, (self.layer,), grad=False)]
    """

    info: ClassVar[MethodInfo]
    can_be_constant: ClassVar[bool] = False
    """Whether a map that is the same everywhere is what it means."""
    has_conventional_sign: ClassVar[bool] = False
    """Whether the sign of its map is a mere convention."""
    grid: str = "token"
    """Where the map lives: on the patch ``"token"`` grid or on ``"pixel"`` s."""

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def class_specific(self) -> bool:
        """Whether the map depends on the class."""
        return self.info.class_specific

    @property
    def signed(self) -> bool:
        """Whether below zero means against the class: not if the sign of a part is a convention, or no class meant."""
        return self.class_specific and not any(part.has_conventional_sign for part in self.components())

    @property
    def models(self) -> str:
        """Which models it is for, with these parameters: as ``Info.models``."""
        return self.info.models

    @property
    def cost(self) -> tuple[float, float]:
        """Forwards and backwards per image."""
        return self.info.cost_of(self)

    def num_forwards(self, model: VisionModel) -> float:
        """How many inputs this method runs per image on this model: what a progress bar counts."""
        return max(1.0, self.cost[0])

    def num_maps(self, model: VisionModel) -> int:
        """How many maps of its grid exist for each image when it is done, extras included."""
        return 1

    @property
    def composite(self) -> Composite:
        """The rules of what flows backward in its pass."""
        return GRADIENT

    @property
    def is_layerwise(self) -> bool:
        """Whether one pass gives its map at every block (``LayerwiseMethod``)."""
        return False

    def records(self, model: VisionModel) -> Sequence[Record]:
        """Return what has to be recorded of one pass over the images."""
        return ()

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        """Return every pass over the images themselves that is known beforehand, so that methods can share it."""
        records = tuple(self.records(model))
        return (Pass(records, self.composite, self.fixed_output),) if records else ()

    def record(self, context: Context) -> ActivationCache:
        """Return the cache of its one pass, run now if no other method has run it."""
        passes = self.passes(context.model)
        if len(passes) != 1:
            raise VitreousError(f"{self.info.name} must define records of one pass, or compute")
        return context.run_pass(passes[0])

    @property
    def fixed_output(self) -> str | None:
        """Which output it explains, whatever was asked for: that of its own parameter; ``None`` for what was asked."""
        output: str | None = getattr(self, "output", None)
        return output

    def outputs(self, asked: str) -> tuple[str, ...]:
        """Return the outputs that its map explains, its parts' together, when one was asked for.

        Parts that are the same for every class explain none.
        """
        if self.fixed_output is not None:
            return (self.fixed_output,)
        outputs = [output for base in self.base_methods() if base.class_specific for output in base.outputs(asked)]
        return tuple(dict.fromkeys(outputs)) or (asked,)

    def attribution(self, cache: ActivationCache) -> Tensor:
        """Return the map ``[B, h, w]`` from that pass: that of its only record, unless it says otherwise."""
        (record,) = self.records(cache.model)
        return cache.map(record)

    def at_layer(self, model: VisionModel, layer: int) -> Method | None:
        """Return the same method at another layer, for sums over layers; ``None`` where there is nothing to see.

        Only methods that look at one layer, and are not layerwise, define it.
        """
        raise VitreousError(f"{self.info.name} does not look at one layer")

    @property
    def has_layer_choice(self) -> bool:
        """Whether it looks at one layer and can look at another (``at_layer``)."""
        return type(self).at_layer is not Method.at_layer

    def compute(self, context: Context) -> Attribution:
        """Return the map of every image and what else came with it."""
        return Attribution(self.attribution(self.record(context)), {})

    @overload
    def attribute(
        self,
        model: VisionModel | nn.Module,
        inputs: Tensor,
        target: TargetSpec = ...,
        *,
        contrast: TargetSpec = ...,
        output: str = ...,
        grid: str | None = ...,
        extras: Literal[False] = ...,
        seed: int = ...,
        batch_size: int | None = ...,
        memory_gb: float | None = ...,
        class_subset: Sequence[int | str] | None = ...,
        compare_classes: Any = ...,
    ) -> Tensor: ...

    @overload
    def attribute(
        self,
        model: VisionModel | nn.Module,
        inputs: Tensor,
        target: TargetSpec = ...,
        *,
        contrast: TargetSpec = ...,
        output: str = ...,
        grid: str | None = ...,
        extras: Literal[True],
        seed: int = ...,
        batch_size: int | None = ...,
        memory_gb: float | None = ...,
        class_subset: Sequence[int | str] | None = ...,
        compare_classes: Any = ...,
    ) -> tuple[Tensor, dict[str, Tensor]]: ...

    def attribute(
        self,
        model: VisionModel | nn.Module,
        inputs: Tensor,
        target: TargetSpec = None,
        *,
        contrast: TargetSpec = None,
        output: str = "logit",
        grid: str | None = None,
        extras: bool = False,
        seed: int = 0,
        batch_size: int | None = None,
        memory_gb: float | None = None,
        class_subset: Sequence[int | str] | None = None,
        compare_classes: Any = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the raw signed map of preprocessed inputs.

        Parameters
        ----------
        model : VisionModel or nn.Module
            The model.
        inputs : Tensor
            Preprocessed images ``[B, 3, H, W]``.
        target : int, str, list, callable or None, default None
            The class by index or name, one for each image, ``None`` for the prediction, or a callable on the logits.
        contrast : int, str, list or None, default None
            Explain the target rather than these classes.
        output : {"logit", "prob", "logprob"}, default "logit"
            Which output of the class is explained.
        grid : {"token", "pixel"} or None, default None
            Where the map is wanted; ``None`` for the method's own grid.
        extras : bool, default False
            Whether second results are returned too.
        seed : int, default 0
            The seed of methods that draw.
        batch_size : int, optional
            How many inputs go through the model together.
        memory_gb : float, optional
            The memory that decides it otherwise.
        class_subset : list of int or str, optional
            The classes that the softmax and the prediction are restricted to.
        compare_classes : list, optional
            The classes that ``var`` compares, one list or one for each image.

        Returns
        -------
        Tensor or tuple of (Tensor, dict)
            The map ``[B, h, w]``; with ``extras`` also the second results by name.

        Examples
        --------
        >>> inputs = model.preprocess.inputs(image)[0][None]
        >>> vt.get_method("ixg").attribute(model, inputs, target=0).shape
        torch.Size([1, 16, 16])
        """
        vision_model = wrap(model)
        if not isinstance(inputs, Tensor):
            raise ModelError(f"attribute takes a tensor, got {type(inputs).__name__}; explain takes pictures and paths")
        vision_model.check_inputs(inputs)
        explained = Target.of(vision_model, len(inputs), target, contrast, output, class_subset, compare_classes)
        context = Context(vision_model, inputs, explained, seed, batch_size, memory_gb, grid=grid)
        (attribution,) = compute_attributions(context, [self])
        maps = to_grid(attribution.map, grid, vision_model, inputs)
        return (maps, attribution.extras) if extras else maps

    @property
    def spec(self) -> str:
        """The shortest text that gives this method again."""
        arguments: list[str] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            bases = _methods_in(value)
            if bases:
                arguments.extend(base.spec for base in bases)
            elif value != field.default:
                arguments.append(f"{field.name}={format_value(value)}")
        return self.info.name + (f"({', '.join(arguments)})" if arguments else "")

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter with its value, bases by their specs, and the notes of all parts."""
        values = self._fields()
        for name, value in values.items():
            specs = [base.spec for base in _methods_in(value)]
            if specs:
                values[name] = specs if isinstance(value, tuple) else specs[0]
        notes = {f"{name} of {part.spec}": note for part in self.components()[1:] for name, note in part.notes.items()}
        return {**values, **self.notes, **notes}

    @property
    def fingerprint(self) -> str:
        """A digest of all that its numbers depend on: parameters and revisions of its parts, and what they refer to.

        Parts of other packages count with their code; where that cannot be known, this equals no other digest.
        """
        parts = self.components()
        codes = {n: code_digest((type(p), p._fields())) for n, p in enumerate(parts) if is_external(type(p))}
        facts = [(p.info.name, p.info.revision, codes.get(n, p.settings), p.dependencies) for n, p in enumerate(parts)]
        unknown = next((code for code in codes.values() if is_unknown(code)), None)
        text = json.dumps(facts, sort_keys=True, default=str)
        return unknown or hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def dependencies(self) -> dict[str, str]:
        """Digests of what the parameters refer to by name, such as the content of a file of statistics."""
        return {}

    @property
    def notes(self) -> dict[str, Any]:
        """What an explanation has to record besides the parameters, such as the source of statistics."""
        return {}

    def base_methods(self) -> list[Method]:
        """The methods that its parameters hold."""
        return [method for value in self._fields().values() for method in _methods_in(value)]

    def _fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def components(self) -> list[Method]:
        """The method itself and every method it is composed of."""
        return [self, *(part for base in self.base_methods() for part in base.components())]

    def __str__(self) -> str:
        return self.spec


class LayerwiseMethod(Method):
    """A method that reads a map at the input of any block from one pass: ``plus`` and ``skipplus`` of it are free."""

    reduce: ClassVar[Reduce]
    """What the residual stream at the input of a block becomes: one number per token."""
    grad: ClassVar[bool] = True
    """Whether that needs the gradient."""
    layer: int = 0
    """The block whose map it is by itself."""

    is_layerwise = True

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> Sequence[Record]:
        """Return what has to be recorded for the maps of these layers: what ``reduce`` makes of what enters them."""
        return [Record("resid_pre", type(self).reduce, tuple(layers), self.grad)]

    def layer_pass(self, model: VisionModel, layers: Sequence[int]) -> Pass:
        """Return the pass with these records."""
        return Pass(tuple(self.layer_records(model, layers)), self.composite, self.fixed_output)

    def layer_map(self, cache: ActivationCache, layer: int) -> Tensor:
        """Return the map ``[B, h, w]`` of one layer: that of its only record, unless it says otherwise."""
        (record,) = self.layer_records(cache.model, (layer,))
        return cache.map(record)

    def records(self, model: VisionModel) -> Sequence[Record]:
        return self.layer_records(model, (resolve_layer(model, self.layer),))

    def attribution(self, cache: ActivationCache) -> Tensor:
        return self.layer_map(cache, resolve_layer(cache.model, self.layer))


def refuse_unfit(methods: Iterable[Method], model: VisionModel) -> None:
    """Refuse methods that follow what this model does not have, or that are made of such."""
    if model.attention != "none" or model.has_residual_stream:
        return
    for part in (part for method in methods for part in method.components()):
        if part.models in ("transformers", "ViT"):
            raise ModelError(
                f"{part.info.name} is for transformers: {model.name} has no attention, and no stream of tokens that "
                "all its layers add to; use a method that is for all models, such as gradcam"
            )


def compute_attributions(context: Context, methods: Iterable[Method], check: bool = True) -> list[Attribution]:
    """Compute several methods in one context, their shared passes run once; refuse or flag maps that mean nothing.

    Without ``check`` such maps are returned as they are, for those who count them.
    """
    methods = list(methods)
    refuse_unfit(methods, context.model)
    with torch.autocast(context.inputs.device.type, enabled=False):  # also what is made of caches keeps its precision
        context.prepare([pass_ for method in methods for pass_ in method.passes(context.model)])
        results = [compute_shared(context, method) for method in methods]
    attributions = []
    for method, (maps, extras) in zip(methods, results, strict=True):
        maps = upcast(maps.detach())
        if check:
            _check(method, maps)
        attributions.append(Attribution(maps, {name: extra.detach() for name, extra in extras.items()}))
    return attributions


def to_grid(maps: Tensor, grid: str | None, model: VisionModel, inputs: Tensor) -> Tensor:
    """Bring maps to the grid asked for: pixels are summed into patches, patches interpolated to pixels."""
    if grid is None or inputs.ndim != 4:
        return maps
    check_choice("grid", grid, ("token", "pixel"))
    size = tuple(inputs.shape[-2:])
    if grid == "token":
        return resize_map(maps, model.grid(inputs)) if tuple(maps.shape[-2:]) == size else maps
    return resize_map(maps, size)


def compute_shared(context: Context, method: Method) -> Attribution:
    """Return the attribution of a method in a context, computed once however many others are made of it."""
    return compute_once(context, method, lambda: compute_checked(context, method))


def compute_checked(context: Context, method: Method) -> Attribution:
    """Compute a method in a context, and refuse an attribution that is not one map for each of its inputs.

    A method of another package must also leave the weights as they are.
    """
    model = context.model.source_model or context.model
    with check_model_unchanged(model, method.spec) if is_external(type(method)) else nullcontext():
        answer = method.compute(context)
    name, batch = method.spec, len(context.inputs)
    if not isinstance(answer, Attribution):
        raise MapError(f"{name}: compute must return an Attribution, not {type(answer).__name__}")
    check_maps(name, answer.map, batch)
    if not isinstance(answer.extras, Mapping):
        raise MapError(f"{name}: extras are a mapping of names to tensors, not {type(answer.extras).__name__}")
    for key, extra in answer.extras.items():
        if not isinstance(extra, Tensor) or extra.ndim == 0 or len(extra) != batch:
            raise MapError(f"{name}: the extra {key!r} is {_shape_text(extra)}, not a tensor of {batch} images")
    return answer


def check_maps(name: str, maps: Any, batch: int) -> None:
    """Refuse what is not a real floating-point map ``[h, w]`` for each of ``batch`` images."""
    if not isinstance(maps, Tensor) or not maps.is_floating_point() or maps.ndim != 3 or 0 in maps.shape:
        raise MapError(f"{name} returned {_shape_text(maps)}; maps are a floating-point tensor [B, h, w]")
    if len(maps) != batch:
        raise MapError(f"{name} returned {len(maps)} maps for {batch} images")


def refuse_not_finite(maps: Tensor, base: Method, method: Method) -> Tensor:
    """Refuse maps of a base that are not finite, where a rank or a weight of 0 would hide it; return the others."""
    if not torch.isfinite(maps).all():
        raise MapError(f"{base.spec} gave values that are not finite, inside {method.info.name}")
    return maps


def _shape_text(value: Any) -> str:
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _methods_in(value: Any) -> tuple[Method, ...]:
    """The methods that a parameter holds: itself, or the members of a tuple."""
    members = value if isinstance(value, tuple) else (value,)
    return tuple(member for member in members if isinstance(member, Method))


def _check(method: Method, maps: Tensor) -> None:
    if not torch.isfinite(maps).all():
        bad = int((~torch.isfinite(maps)).flatten(1).any(dim=1).sum())
        raise MapError(f"{method.spec} gave values that are not finite for {bad} of {len(maps)} images")
    if method.can_be_constant or maps[0].numel() == 1:
        return
    flat = (maps.amax(dim=(1, 2)) == maps.amin(dim=(1, 2))).nonzero().flatten().tolist()
    if flat:
        kind = "zero" if bool((maps[flat[0]] == 0).all()) else "constant"
        text = f"{method.spec}: the map of image {flat[0]} is {kind} everywhere; it explains nothing"
        warnings.warn(text, VitreousWarning, stacklevel=3)


class BaseWrapper(Method):
    """A method made of one other, or of several: it costs what they cost."""

    base: Method

    @property
    def bases_or_base(self) -> list[Method]:
        """The methods that it is made of; a class may fix its base instead of taking it as a parameter."""
        return self.base_methods() or [self.base]

    @property
    def grid(self) -> str:  # type: ignore[override]
        return self.base.grid

    @property
    def class_specific(self) -> bool:
        return any(base.class_specific for base in self.bases_or_base)

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = zip(*(base.cost for base in self.bases_or_base), strict=True)
        return sum(forwards), sum(backwards)

    def num_forwards(self, model: VisionModel) -> float:
        return sum(base.num_forwards(model) for base in self.bases_or_base)
