"""Models made of another: a part of it, one with something changed, or a larger one around it.

A known transformer inside a model of the user's own, or one with another head: what is around it runs as it is.
``embed`` runs the model's own forward up to the first block, ``forward_head`` runs it with the blocks stepping aside:
the last one gives the tokens it is handed. So whatever comes before and after the blocks is the model's, line by line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.base import VisionModel
from vitreous.models.pooling import Pooling, infer_pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import exact_pass, failing_forward, overridden, remembered
from vitreous.models.structure import Weights, Windows

_FACTS = (
    *("family", "embed_dim", "num_heads", "num_prefix_tokens", "can_drop_tokens", "attention", "stages"),
    *("has_residual_stream", "unavailable_points", "branch_point", "cam_point"),
)


class DerivedModel(VisionModel):
    """A model whose blocks are those of another, ``inner``, from block ``first`` on."""

    inner: VisionModel
    first = 0

    def _take_facts(self, *more: str) -> None:
        for name in (*_FACTS, *more):
            setattr(self, name, getattr(self.inner, name))

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.inner.forward_block(layer + self.first, tokens, keep)

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return self.inner.grid(inputs, layer + self.first)

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return self.inner.hook_point(layer + self.first, name)

    def get_block(self, layer: int) -> nn.Module:
        return self.inner.get_block(layer + self.first)

    def get_pooling_module(self) -> nn.Module | None:
        return self.inner.get_pooling_module()

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        return self.inner.branch(layer + self.first, name)

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if self.source_model is None or isinstance(self.source_model, DerivedModel):
            return super().operation_counts(layer)
        return self._operation_counts(layer)  # a part of a copy

    def _operation_counts(self, layer: int | None) -> Mapping[str, int]:
        return self.inner.operation_counts(None if layer is None else layer + self.first)

    def embed_dim_at(self, layer: int) -> int:
        return self.inner.embed_dim_at(layer + self.first)

    def windows(self, layer: int) -> Windows | None:
        return self.inner.windows(layer + self.first)

    def weights(self, layer: int) -> Weights:
        return self.inner.weights(layer + self.first)


class SubModel(DerivedModel):
    """The part of a model from block ``first`` on, as a model of its own: ``f_l`` of the PLUS paper."""

    def __init__(self, inner: VisionModel, first: int, inputs: Tensor | None) -> None:
        if not 0 <= first < inner.depth:
            raise ModelError(f"layer {first} is outside 0..{inner.depth - 1}")
        self.inner, self.first, self._inputs = inner, first, inputs
        more = ("module", "preprocess", "num_classes", "class_names", "has_known_head", "source_model", "is_relu_only")
        self._take_facts(*more)
        self.name, self.depth = f"{inner.name}[{first}:]", inner.depth - first
        later = [range(max(0, stage.start - first), stage.stop - first) for stage in inner.stages]
        self.stages = tuple(stage for stage in later if len(stage))

    @property
    def pooling(self) -> Pooling:  # type: ignore[override]
        """That of the whole model, also after it was changed."""
        return self.inner.pooling

    @property
    def deviations(self) -> Mapping[str, str]:  # type: ignore[override]
        """Likewise."""
        return self.inner.deviations

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that the tokens are of, where that is known."""
        if isinstance(self.inner, SubModel):
            return self.inner.image_size
        return None if self._inputs is None else (self._inputs.shape[-2], self._inputs.shape[-1])

    def embed(self, inputs: Tensor) -> Tensor:
        return inputs

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.inner.forward_head(tokens)

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return super().grid(self._inputs, layer)

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.inner.last_grid(self._inputs)

    def is_standard(self, layer: int) -> bool:
        return self.inner.is_standard(layer + self.first)

    def describe_deviation(self, layer: int) -> str:
        return self.inner.describe_deviation(layer + self.first)

    def verify(self, inputs: Tensor) -> None:
        """The whole model is verified with images; what it computes of tokens has no other forward to agree with."""

    def check_inputs(self, inputs: Tensor) -> None:
        width = self.embed_dim_at(0)
        if inputs.ndim != 3 or inputs.shape[1] <= self.num_prefix_tokens or inputs.shape[2] != width:
            raise ModelError(f"{self.name} takes tokens [B, N, {width}], got {list(inputs.shape)}")
        if inputs.shape[0] == 0:
            raise ModelError("the batch is empty")


class LogitLens(SubModel):
    """One block, and the model's head on the mean of all its output tokens, whatever the model itself reads.

    The head gets that mean in the place of every token it might look at, so that any pooling returns it. With
    ``per_token`` it gets every token in turn, and the mean is that of the logits: the norm in front of the head comes
    first.
    """

    def __init__(self, inner: VisionModel, layer: int, per_token: bool = False) -> None:
        super().__init__(inner, layer, None)
        self.name, self.depth, self.stages, self.per_token = f"{inner.name}[{layer}]", 1, (), per_token

    def forward_head(self, tokens: Tensor) -> Tensor:
        if self.per_token:
            logits = self._read(tokens.flatten(0, 1).unsqueeze(1))
            return logits.reshape(*tokens.shape[:2], -1).mean(dim=1)
        return self._read(tokens.mean(dim=1, keepdim=True))

    def _read(self, token: Tensor) -> Tensor:
        patches = math.prod(self.inner.grid(layer=self.inner.depth - 1)) if self.inner.stages else 1
        return self.inner.forward_head(token.expand(-1, self.num_prefix_tokens + patches, -1))

    def check_inputs(self, inputs: Tensor) -> None:
        if inputs.ndim != 3:
            super().check_inputs(inputs)


class WholeModel(SubModel):
    """A whole model of which something is changed."""

    def __init__(self, inner: VisionModel) -> None:
        super().__init__(inner, 0, None)
        self.name, self.has_patch_embedding = inner.name, inner.has_patch_embedding

    def embed(self, inputs: Tensor) -> Tensor:
        return self.inner.embed(inputs)

    def grid(self, inputs: Tensor | None = None, layer: int | None = None) -> tuple[int, int]:
        return self.inner.grid(inputs) if layer is None else self.inner.grid(inputs, layer)

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.inner.last_grid(inputs)

    def check_inputs(self, inputs: Tensor) -> None:
        self.inner.check_inputs(inputs)

    def verify(self, inputs: Tensor) -> None:
        if self.source_model is None:
            self.inner.verify(inputs)


class PermutedHeadModel(WholeModel):
    """A whole model whose head gets the channels in a random order."""

    def __init__(self, inner: VisionModel, seed: int) -> None:
        super().__init__(inner)
        self.seed = seed

    def forward_head(self, tokens: Tensor) -> Tensor:
        order = torch.randperm(tokens.shape[-1], generator=torch.Generator().manual_seed(self.seed))
        return self.inner.forward_head(tokens[..., order.to(tokens.device)])


class ReferenceModel(WholeModel):
    """A whole model that runs a reference beside the images it is given: the last row of everything inside it.

    Its logits are those of the images alone.
    """

    def __init__(self, inner: VisionModel, reference: Tensor) -> None:
        super().__init__(inner)
        self.reference = reference

    def embed(self, inputs: Tensor) -> Tensor:
        return self.inner.embed(torch.cat([inputs, self.reference[None].to(inputs)]))

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.inner.forward_head(tokens)[:-1]


# -- around a known transformer ----------------------------------------------------------------------------


class Reached(BaseException):
    """Ends a forward at the first block; no error, so that nobody's ``except Exception`` takes it for one."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def run_until(module: nn.Module, model: nn.Module, inputs: Tensor) -> Any:
    """Run the forward of a shared copy up to one of its modules, and return what that gets, if it ever runs."""

    def stop(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise Reached(value)

    try:
        with overridden((module, "forward", stop)):
            model(inputs)
    except Reached as reached:
        return reached.value
    return None


class _Surroundings(NamedTuple):
    """What one forward of a blank image tells about the parts around the blocks."""

    shapes: tuple[tuple[int, int], ...]
    """Of every block's output: how long a tuple it is, 0 for a tensor, and the dimensions of its first tensor."""
    classes: int
    pooling: Pooling


class WrappedModel(DerivedModel):
    """A model with one known transformer in it; ``output_key`` names one of several outputs."""

    has_known_head = False
    _shapes: tuple[tuple[int, int], ...]

    def __init__(
        self,
        model: nn.Module,
        inner: VisionModel,
        path: str,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        output_key: str | int | None = None,
    ) -> None:
        self.module, self.inner, self.path, self.output_key = model, inner, path, output_key
        self.identity_extras = path, output_key
        self._take_facts("depth", "pooling")
        self.name = inner.name = name or (f"{type(model).__name__} around {inner.name}" if path else inner.name)
        self.preprocess = inner.preprocess = preprocess or inner.preprocess
        facts = self._surroundings()
        self.pooling = facts.pooling
        self._set_classes(facts.classes, class_names, inner.class_names)

    def embed(self, inputs: Tensor) -> Tensor:
        copy = self.shared_copy()
        tokens: Tensor | None = run_until(copy.inner.get_block(0), copy.module, inputs)
        if tokens is None:
            raise ModelError(f"{self.name}: its forward never comes to block 0 of {self.path or 'itself'}")
        return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens

    def forward_head(self, tokens: Tensor) -> Tensor:
        copy, last = self.shared_copy(), self.depth - 1

        def step_aside(layer: int, arriving: Tensor, *args: Any, **kwargs: Any) -> Any:
            length, dimensions = self._shapes[layer]
            out = tokens if layer == last else arriving
            if layer == last and dimensions == 4:
                out = out.reshape(len(out), *self.grid(layer=layer), -1)
            return (out, *[None] * (length - 1)) if length else out

        with overridden(*((copy.get_block(n), "forward", partial(step_aside, n)) for n in range(self.depth))):
            return copy.reference_forward(self._blank_image().expand(len(tokens), -1, -1, -1))

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return select_logits(self.name, self.output_key, self.module(inputs))

    def _surroundings(self) -> _Surroundings:
        """Return what is known about this structure, found when it is first wrapped."""
        key = ("surroundings", self.path, self.output_key, self.preprocess.size)
        facts = remembered(self.module, key, self._probe)
        self._shapes = facts.shapes
        return facts

    def read_pooling(self) -> Pooling:
        return self._surroundings().pooling

    def _probe(self) -> _Surroundings:
        copy, shapes = self.shared_copy(own_tensors=True), list[tuple[int, int]]()

        def note_shape(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            shapes.append((0, out.ndim) if isinstance(out, Tensor) else (len(out), out[0].ndim))
            return out

        blocks = [copy.get_block(layer) for layer in range(self.depth)]
        noting = overridden(*((block, "forward", partial(note_shape, block.forward)) for block in blocks))
        with exact_pass(self), failing_forward(self.name, "a blank image"), noting:
            logits = copy.reference_forward(self._blank_image())
        if len(shapes) != self.depth:
            inner = self.path or "it"
            raise ModelError(f"{self.name}: its forward runs {len(shapes)} blocks, {inner} has {self.depth}")
        self._shapes = tuple(shapes)
        pooling = infer_pooling(self, self.inner.pooling)
        if pooling is None:
            raise ModelError(f"{self.name}: its output does not depend on what the last block of {self.path} gives")
        return _Surroundings(self._shapes, logits.shape[1], pooling)

    def check_inputs(self, inputs: Tensor) -> None:
        self.inner.check_inputs(inputs)

    def __repr__(self) -> str:
        where = f"inside .{self.path}" if self.path else "with a head of its own"
        return f"{super().__repr__()[:-1]}; {type(self.inner.module).__name__} {where})"


def select_logits(name: str, key: str | int | None, output: Any) -> Tensor:
    """Return the logits ``[B, classes]`` in what a model gives; ``key`` names one of several outputs."""
    output = output if key is not None else getattr(output, "logits", output)
    if isinstance(output, Mapping | list | tuple):
        return _select_one(name, key, output)
    if key is not None:
        raise ModelError(f"{name} has one output; output_key={key!r} does not apply")
    if not isinstance(output, Tensor) or output.ndim != 2:
        got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(f"{name} gives {got}, not logits [B, classes]")
    return output


def _select_one(name: str, key: str | int | None, output: Mapping[str, Any] | Sequence[Any]) -> Tensor:
    outputs = output.items() if isinstance(output, Mapping) else enumerate(output)
    fitting = {k: value for k, value in outputs if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] > 0}
    if key is None and len(fitting) == 1:
        return next(iter(fitting.values()))
    if key not in fitting:
        names, missing = ", ".join(map(repr, fitting)) or "none", "" if key is None else f" and none called {key!r}"
        raise ModelError(f"{name} has these outputs of logits: {names}{missing}; choose one with output_key=")
    return fitting[key]
