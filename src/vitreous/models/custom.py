"""A known transformer inside a model of the user's own, or one with another head: what is around it runs as it is.

``embed`` runs the model's own forward up to the first block, ``finish`` runs it with the blocks stepping aside: the
last one gives the tokens it is handed. So whatever comes before and after the blocks is the model's, line by line, and
the view is proven equal to it like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, one_line
from vitreous.models.base import VisionModel
from vitreous.models.class_names import check_count
from vitreous.models.modifications import structure
from vitreous.models.pooling import Pooling, infer_pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Weights, Windows

__all__ = ["WrappedModel", "Reached", "chosen", "instead"]


class _Facts(NamedTuple):
    """What one forward of a blank image tells about the parts around the blocks."""

    shapes: tuple[Any, ...]
    """Of every block's output: how long a tuple it is, 0 for a tensor, and the dimensions of its first tensor."""
    classes: int
    pooling: Pooling


_known: WeakKeyDictionary[nn.Module, tuple[Any, _Facts]] = WeakKeyDictionary()


class Reached(BaseException):
    """Ends a forward at the first block; no error, so that nobody's ``except Exception`` takes it for one."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens


class WrappedModel(VisionModel):
    """A model with one known transformer in it; ``output`` names one of several outputs."""

    has_known_head = False
    inner: VisionModel
    _shapes: tuple[Any, ...]

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
        self.family = inner.family
        self.name = name or (f"{type(model).__name__} around {inner.name}" if path else inner.name)
        inner.name = self.name
        self.depth, self.embed_dim, self.num_heads, self.num_prefix_tokens = (
            inner.depth,
            inner.embed_dim,
            inner.num_heads,
            inner.num_prefix_tokens,
        )
        self.can_drop_tokens, self.attention, self.stages = inner.can_drop_tokens, inner.attention, inner.stages
        self.has_residual_stream = inner.has_residual_stream
        self.unavailable_points, self.branch_point, self.cam_point = (
            inner.unavailable_points,
            inner.branch_point,
            inner.cam_point,
        )
        self.preprocess = inner.preprocess = preprocess or inner.preprocess
        self.pooling, self.num_classes = inner.pooling, 0
        facts = self._facts()
        self.pooling, self.num_classes = facts.pooling, facts.classes
        self.class_names = class_names or (
            inner.class_names if inner.class_names and len(inner.class_names) == self.num_classes else None
        )
        check_count(self.name, class_names, self.num_classes)

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        def stop(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
            raise Reached(tokens)

        seen = self.shared_copy()
        try:
            with instead([(seen.inner.get_block(0), stop)]):
                seen.module(inputs)
        except Reached as reached:
            tokens = reached.tokens
            return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
        raise ModelError(f"{self.name}: its forward never comes to block 0 of {self.path or 'itself'}")

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.inner.forward_block(layer, tokens, keep)

    def forward_head(self, tokens: Tensor) -> Tensor:
        seen = self.shared_copy()

        def aside(layer: int, given: Tensor | None) -> Callable[..., Any]:
            length, dimensions = self._shapes[layer]

            def forward(arriving: Tensor, *args: Any, **kwargs: Any) -> Any:
                out = arriving if given is None else given
                if given is not None and dimensions == 4:
                    out = out.reshape(len(out), *self.grid(layer=layer), -1)
                return (out, *[None] * (length - 1)) if length else out

            return forward

        last = self.depth - 1
        steps = [(seen.inner.get_block(n), aside(n, tokens if n == last else None)) for n in range(self.depth)]
        with instead(steps):
            return seen._chosen(seen.module(self._blank().expand(len(tokens), -1, -1, -1)))

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return self._chosen(self.module(inputs))

    def _chosen(self, output: Any) -> Tensor:
        return chosen(self.name, self.output_key, output)

    # -- what a blank image tells ----------------------------------------------------------------------

    def _facts(self) -> _Facts:
        """Return what is known about this structure, found on its first view."""
        now = (self.path, self.output_key, self.preprocess.size, *structure(self.module))
        then, facts = _known.get(self.module, (None, None))
        if facts is None or then != now:
            shapes, classes = self._found()
            self._shapes = shapes
            pooling = infer_pooling(self, self.inner.pooling)
            if pooling is None:
                raise ModelError(f"{self.name}: its output does not depend on what the last block of {self.path} gives")
            facts = _Facts(shapes, classes, pooling)
            _known[self.module] = now, facts
        self._shapes = facts.shapes
        return facts

    def read_pooling(self) -> Pooling:
        return self._facts().pooling

    def _found(self) -> tuple[tuple[Any, ...], int]:
        """Return the shapes that blocks give, and the number of classes."""
        seen = self.shared_copy(own_tensors=True)
        shapes: list[tuple[int, int]] = []

        def telling(own: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                out = own(*args, **kwargs)
                note(out)
                return out

            return forward

        def shape(out: Any) -> None:
            whole = isinstance(out, Tensor)
            shapes.append((0 if whole else len(out), (out if whole else out[0]).ndim))

        told = [(block, telling(block.forward, shape)) for block in map(seen.inner.get_block, range(self.depth))]
        off = torch.autocast(self.device.type, enabled=False)
        try:
            with torch.inference_mode(False), torch.no_grad(), off, instead(told):
                logits = seen._chosen(seen.module(self._blank()))
        except ModelError:
            raise
        except Exception as error:  # a forward of the user's own can fail anywhere
            reason = one_line(f"{type(error).__name__}: {error}")[:200]
            raise ModelError(f"{self.name}: its own forward fails on a blank image ({reason})") from error
        if len(shapes) != self.depth:
            raise ModelError(
                f"{self.name}: its forward runs {len(shapes)} blocks, {self.path or 'it'} has {self.depth}"
            )
        return tuple(shapes), logits.shape[1]

    def _blank(self) -> Tensor:
        return torch.zeros(1, 3, *self.preprocess.size, dtype=self.dtype, device=self.device)

    # -- as inside -------------------------------------------------------------------------------------

    def get_block(self, layer: int) -> nn.Module:
        return self.inner.get_block(layer)

    def get_pooling_module(self) -> nn.Module | None:
        return self.inner.get_pooling_module()

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return self.inner.grid(inputs, layer)

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return self.inner.hook_point(layer, name)

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        return self.inner.branch(layer, name)

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        return self.inner.operation_counts(layer)

    def embed_dim_at(self, layer: int) -> int:
        return self.inner.embed_dim_at(layer)

    def windows(self, layer: int) -> Windows | None:
        return self.inner.windows(layer)

    def weights(self, layer: int) -> Weights:
        return self.inner.weights(layer)

    def check_inputs(self, inputs: Tensor) -> None:
        self.inner.check_inputs(inputs)

    def __repr__(self) -> str:
        where = f"inside .{self.path}" if self.path else "with a head of its own"
        return f"{super().__repr__()[:-1]}; {type(self.inner.module).__name__} {where})"


def chosen(name: str, asked: str | int | None, output: Any) -> Tensor:
    """Return the logits ``[B, classes]`` among what a model gives; ``asked`` is the name of one of several."""
    given = output if asked is not None else getattr(output, "logits", output)
    several = dict(given) if isinstance(given, Mapping) else None
    if isinstance(given, list | tuple):
        several = dict(enumerate(given))
    if several is not None:
        fitting = {k: v for k, v in several.items() if isinstance(v, Tensor) and v.ndim == 2 and v.shape[1] > 0}
        if asked is None and len(fitting) == 1:
            return next(iter(fitting.values()))
        if asked not in fitting:
            names = ", ".join(repr(key) for key in fitting) or "none"
            missing = "" if asked is None else f" and none called {asked!r}"
            raise ModelError(f"{name} has these outputs of logits: {names}{missing}; choose one with output_key=")
        return fitting[asked]
    if asked is not None:
        raise ModelError(f"{name} has one output; output_key={asked!r} does not apply")
    if not isinstance(given, Tensor) or given.ndim != 2:
        told = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ModelError(f"{name} gives {told}, not logits [B, classes]")
    return given


@contextmanager
def instead(forwards: Sequence[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Let some modules of a twin compute something else for a while; the user's own are never touched."""
    before = [(vars(module), vars(module).get("forward")) for module, _ in forwards]
    for (attributes, _), (_, forward) in zip(before, forwards, strict=True):
        attributes["forward"] = forward
    try:
        yield
    finally:
        for attributes, own in before:
            attributes.pop("forward")
            attributes.update({} if own is None else {"forward": own})
