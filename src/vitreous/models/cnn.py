"""Chains of blocks as the layouts of convolutional networks have them, whatever the library.

Convolutional networks: a view whose tokens are the places of feature maps.

A chain of modules, each of which gets the feature map that the one before it gave, is all that a family has to name.
``embed`` runs the model's own forward up to the chain, ``finish`` runs it with the chain stepping aside, so that
whatever comes before and after is the model's, line by line. The rest is found by running one image: widths, grids,
how many activations there are, and that nothing passes beside the chain.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, VitreousWarning, nearest, one_line
from vitreous.models.base import VisionModel
from vitreous.models.class_names import check_count
from vitreous.models.custom import Reached, chosen, instead
from vitreous.models.modifications import structure
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import gap
from vitreous.models.transforms import timm_preprocess

__all__ = [
    "Chain",
    "ConvModel",
    "by_convolutions",
    "by_stages",
    "dense",
]


def by_stages(stages: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> Chain:
    """One block for each path of every stage; what runs ``after`` a stage ends its last block."""
    blocks: list[tuple[str, ...]] = [(path,) for stage in stages for path in stage]
    ends = [sum(map(len, stages[: n + 1])) - 1 for n in range(len(stages))]
    for end, more in zip(ends, after, strict=True):
        blocks[end] = (*blocks[end], *more)
    return tuple(blocks)


def by_convolutions(model: Any) -> Chain:
    """One block for each convolution of ``features``, with all that follows it up to the next.

    What pools the last of them belongs to the head, so that the last map is that of the last convolution, rectified.
    """
    blocks: list[tuple[str, ...]] = []
    for name, part in model.features.named_children():
        path = f"features.{name}"
        if isinstance(part, nn.Conv2d):
            blocks.append((path,))
        elif blocks:
            blocks[-1] = (*blocks[-1], path)
    pooling = [path for path in blocks[-1] if isinstance(model.get_submodule(path), nn.MaxPool2d | nn.AvgPool2d)]
    blocks[-1] = tuple(path for path in blocks[-1] if path not in pooling)
    return tuple(blocks)


def dense(model: Any) -> Chain:
    """One block for each dense block of ``features``, with what follows it: a transition, or the last norm.

    Inside a dense block every layer reads all layers before it, so that it cannot be cut further.
    """
    blocks: list[tuple[str, ...]] = []
    for name, _ in model.features.named_children():
        if name.startswith("denseblock"):
            blocks.append((f"features.{name}",))
        elif blocks:
            blocks[-1] = (*blocks[-1], f"features.{name}")
    return tuple(blocks)


Chain = tuple[tuple[str, ...], ...]
"""The paths of the modules of every block, in the order in which they run; what follows a stage ends its last block."""

_NO_TOKENS = "it has no attention between tokens, and a block shows only its input and its output"
_NAMES = {
    "activation": (
        "Relu", "Gelu", "Silu", "Sigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "Mish", "Elu", "LeakyRelu", "Prelu",
        "PreluKernel", "Softplus", "Tanh", "Celu",
    ),
    "norm": ("NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm", "LinalgVectorNorm", "Norm"),
}  # fmt: skip
_GATES = ("Sigmoid", "Hardsigmoid")
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}
"""Operations by the names that autograd gives them: counted without the override that rules are found by."""

V = TypeVar("V", bound="ConvModel")


class _Facts(NamedTuple):
    """What one image tells about a chain."""

    shapes: tuple[tuple[int, int, int], ...]
    """Channels, rows and columns of what enters each block, and of what leaves the last."""
    calls: tuple[Mapping[str, int], ...]
    changed: frozenset[int]
    """Blocks that change what they are given, and the depth if the head does: they get a copy."""
    aside: tuple[str, ...]
    """Modules that run before the end of the chain, and need not run again for what follows it."""
    classes: int
    is_relu_only: bool


_known: WeakKeyDictionary[nn.Module, dict[Any, _Facts]] = WeakKeyDictionary()


class ConvModel(VisionModel):
    """A convolutional network, as a chain of blocks between feature maps ``[B, C, h, w]``.

    Tokens are the places of a feature map, ``[B, h w, C]``: the same memory, seen in another order. ``grid(inputs)`` is
    that of the last feature map; the input of block l lies on ``grid(inputs, l)``.

    Class activation maps look at the output of the last block. It is the last map that still has places: what follows
    pools or flattens them.
    """

    attention = "none"
    can_drop_tokens = has_patch_embedding = has_residual_stream = False
    cam_point = branch_point = "resid_post"
    unavailable_points: Mapping[str, str] = dict.fromkeys(("norm1", "attn", "norm2", "mlp"), _NO_TOKENS)
    num_heads = num_prefix_tokens = 0
    has_known_head = False

    def __init__(
        self,
        model: nn.Module,
        chain: Chain,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        output_key: str | int | None = None,
        cut: str = "",
        headless: bool = False,
    ) -> None:
        self.module, self.chain, self.output_key, self.cut = model, chain, output_key, cut
        self.identity_extras = chain, output_key
        self.family = getattr(type(self), "family", "cnn")
        self.name = name or type(model).__name__
        self.preprocess = preprocess or _preprocess(model, self.name)
        self.depth, self.pooling, self.num_classes, self.class_names = len(chain), Pooling("avg", 0), 0, class_names
        if headless:  # a part of a larger model, which is looked at as a whole
            return
        facts = self._facts()
        self._shapes, self._calls, self._changed, self._aside, self.num_classes, self.is_relu_only = facts
        self.embed_dim = self._shapes[-1][0]
        grids = [self.grid(layer=layer) for layer in range(self.depth)]
        parts = [list(group) for _, group in groupby(range(self.depth), key=grids.__getitem__)]
        self.stages = tuple(range(part[0], part[-1] + 1) for part in parts) if len(parts) > 1 else ()
        check_count(self.name, class_names, self.num_classes)

    def ending(self, at: str) -> ConvModel:
        """Return the view whose last feature map is what the module called ``at`` gives."""
        facts: dict[str, Any] = {"name": self.name, "class_names": self.class_names, "preprocess": self.preprocess}
        facts |= {"output_key": self.output_key, "cut": at}
        inside = [n for n, links in enumerate(self.chain) if any(_within(path, at) for path in links)]
        if not inside:
            return ConvModel(self.module, ((at,),), **facts)
        last = inside[-1]
        links = self.chain[last]
        end = max(n for n, path in enumerate(links) if _within(path, at))
        return ConvModel(self.module, (*self.chain[:last], links[: end + 1]), **facts)

    def wrap_in(self, module: nn.Module, path: str, **facts: Any) -> VisionModel:
        chain = tuple(tuple(f"{path}.{link}" for link in links) for links in self.chain) if path else self.chain
        given = {key: value for key, value in facts.items() if value is not None}
        name = f"{type(module).__name__} around {self.name}" if path else self.name
        usual = {"name": name, "preprocess": self.preprocess}
        made = ConvModel(module, chain, **{**usual, **given})
        if made.class_names is None and self.class_names and len(self.class_names) == made.num_classes:
            made.class_names = self.class_names
        return made

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return _flat(self.shared_copy()._reach(inputs))

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            self.select_tokens(tokens, keep)  # refuses
        features = self._features(tokens, layer)
        return _flat(self.shared_copy()._through(layer, features.clone() if layer in self._changed else features))

    def forward_head(self, tokens: Tensor) -> Tensor:
        features = self._features(tokens, self.depth)
        return self.shared_copy()._behind(features.clone() if self.depth in self._changed else features, self._aside)

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return chosen(self.name, self.output_key, self.module(inputs))

    def shared_copy(self: V, own_tensors: bool = False) -> V:
        """Return a twin whose modules change nothing in place, and compute nothing twice to save memory."""
        made = super().shared_copy(own_tensors)
        if made is not self:
            for module in made.module.modules():
                for flag in ("inplace", "grad_checkpointing"):
                    if vars(module).get(flag) is True:  # getattr takes its time where there is none
                        vars(module)[flag] = False
        return made

    def _reach(self, inputs: Tensor) -> Tensor:
        """Run the model up to the chain."""

        def stop(features: Tensor, *args: Any, **kwargs: Any) -> Any:
            raise Reached(features)

        first = self.chain[0][0]
        try:
            with instead([(self._part(first), stop)]):
                self.module(inputs)
        except Reached as reached:
            return self._checked(first, "is given", reached.tokens)
        raise ModelError(f"{self.name}: its forward never comes to {first!r}")

    def _through(self, layer: int, features: Tensor) -> Tensor:
        for path in self.chain[layer]:
            features = self._checked(path, "gives", self._part(path)(features))
        return features

    def _behind(self, features: Tensor, aside: Sequence[str]) -> Tensor:
        """Run what follows the chain: the model's own forward of a blank image, with what comes before stepping aside.

        One blank image serves a whole batch, because the end of the chain gives what it is told to.
        """

        def give(*args: Any, **kwargs: Any) -> Tensor:
            return features

        steps = [(self._part(path), _pass_on) for path in aside] + [(self._part(self.chain[-1][-1]), give)]
        blank = torch.zeros(1, 3, *self.preprocess.size, dtype=self.dtype, device=self.device)
        with instead(steps):
            return chosen(self.name, self.output_key, self.module(blank))

    # -- places ----------------------------------------------------------------------------------------

    def grid(self, inputs: Tensor | None = None, layer: int | None = None) -> tuple[int, int]:
        """Return rows and columns of what enters a block; without a layer, of the last feature map."""
        return self._shapes[self.depth if layer is None else layer][1:]

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.grid(inputs)

    def embed_dim_at(self, layer: int) -> int:
        return self._shapes[layer][0]

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        raise ModelError(f"{self.name} cannot show {name} of block {layer}: {_NO_TOKENS}")

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        return {} if layer is None else self._calls[layer]

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        height, width = self.preprocess.size
        if tuple(inputs.shape[-2:]) != (height, width):
            raise ModelError(
                f"{self.name} takes images [B, 3, {height}, {width}], got {list(inputs.shape)}; "
                "give img_size= to load, or preprocess= to view"
            )

    def _features(self, tokens: Tensor, layer: int) -> Tensor:
        _, height, width = self._shapes[layer]
        return tokens.transpose(1, 2).reshape(len(tokens), -1, height, width)

    def _part(self, path: str) -> nn.Module:
        try:
            return self.module.get_submodule(path)
        except AttributeError:
            names = [name for name, _ in self.module.named_modules() if name]
            known = ", ".join(name for name, _ in self.module.named_children())
            raise ModelError(
                f"{self.name} has no layer {path!r}{nearest(path, names) or f'; it has {known}'}"
            ) from None

    def _checked(self, path: str, does: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.ndim != 4:
            told = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"{self.name}: {path} {does} {told}, not a feature map [B, C, h, w]; name another layer")
        return value

    # -- what one image tells --------------------------------------------------------------------------

    def _facts(self) -> _Facts:
        key = (type(self), self.chain, self.output_key, self.preprocess.size, self.dtype, *structure(self.module))
        known = _known.setdefault(self.module, {})
        if key not in known:
            off = torch.autocast(self.device.type, enabled=False)
            try:
                with torch.inference_mode(False), torch.no_grad(), off:
                    known[key] = self._found()
            except ModelError:
                raise
            except Exception as error:  # a forward of the user's own can fail anywhere
                reason = one_line(f"{type(error).__name__}: {error}")[:200]
                raise ModelError(f"{self.name}: its own forward fails on one image ({reason})") from error
        return known[key]

    def _found(self) -> _Facts:
        seen = self.shared_copy(own_tensors=True)
        noise = torch.randn(1, 3, *self.preprocess.size, generator=torch.Generator().manual_seed(0))
        image = noise.to(self.device, self.dtype)
        with torch.enable_grad():
            expected, aside = seen._order(image.clone().requires_grad_())
        active = {name for name in _operations(expected) if _KINDS.get(name) == "activation"}
        is_relu_only, expected = "Relu" in active and active <= {"Relu", *_GATES}, expected.detach()
        features = seen._reach(image)
        shapes, calls, changed = [_shape(features)], list[Mapping[str, int]](), set[int]()
        for layer in range(self.depth):
            with torch.enable_grad():
                given = features.detach().requires_grad_().clone()
                version = given._version
                after = seen._through(layer, given)
            changed |= {layer} if given._version != version else set()
            calls.append(_counted(after))
            features = after.detach()
            shapes.append(_shape(features))
        twice = features.expand(2, -1, -1, -1).clone()
        for tried in (aside, ()):
            given = twice.clone()
            version = given._version
            try:
                logits = seen._behind(given, tried)
            except Exception:  # something between them needs what they give
                if tried:
                    continue
                raise
            if logits.shape[1:] == expected.shape[1:] and len(logits) == 2 and not gap(logits, expected)[1]:
                changed |= {self.depth} if given._version != version else set()
                told = expected.shape[1], is_relu_only
                return _Facts(tuple(shapes), tuple(calls), frozenset(changed), tuple(tried), *told)
        raise ModelError(
            f"{self.name}: what {self.chain[-1][-1]} gives does not decide its output: something passes beside it; "
            "name a layer that everything passes, such as a whole stage"
        )

    def _order(self, image: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Return the logits of an image, and which modules have done their work before the last of the chain begins."""
        started, done, last = list[str](), list[str](), self.chain[-1][-1]
        before: list[str] = []
        handles = []
        for path, module in self.module.named_modules():

            def start(module: nn.Module, args: Any, path: str = path) -> None:
                if path == last and not before:
                    before.extend(done)
                started.append(path)

            def end(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
                done.append(path)

            handles += [module.register_forward_pre_hook(start), module.register_forward_hook(end)]
        links = [path for each in self.chain for path in each]
        for path in links:
            self._part(path)
        logits = self.reference_forward(image)
        for handle in handles:
            handle.remove()
        for path in links:
            if started.count(path) != 1:
                raise ModelError(f"{self.name}: {path} runs {started.count(path)} times, and a place must run once")
        return logits, tuple(path for path in before if not any(path != up and _within(path, up) for up in before))

    def __repr__(self) -> str:
        (height, width), last = self.grid(), self.chain[-1][-1]
        return (
            f"View({self.name}: {self.depth} blocks, {height}x{width} places of {self.embed_dim} channels at {last}, "
            f"{self.num_classes} classes)"
        )


def _flat(features: Tensor) -> Tensor:
    return features.flatten(2).transpose(1, 2)


def _shape(features: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = features.shape
    return channels, height, width


def _pass_on(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")


def _counted(output: Tensor) -> dict[str, int]:
    """Count activations and norms in the graph of an output."""
    found = [_KINDS.get(name) for name in _operations(output)]
    return {kind: found.count(kind) for kind in ("attention", "norm", "activation")}


def _operations(output: Tensor) -> list[str]:
    """Return the names of all operations in the graph of an output."""
    names, seen, waiting = list[str](), set[Any](), [output.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name().partition("Backward")[0])
            waiting += [each for each, _ in node.next_functions]
    return names


def _preprocess(model: nn.Module, name: str) -> Preprocess:
    """Return what a model notes about its pictures, as timm's do; ImageNet's usual way, loudly, where it does not."""
    noted, usual = getattr(model, "pretrained_cfg", None), Preprocess()
    noted = noted if isinstance(noted, Mapping) else {}
    if not {"mean", "std"} <= noted.keys():
        text = f"{name} does not say how its pictures are prepared: ImageNet's usual way is taken; give preprocess="
        warnings.warn(text, VitreousWarning, stacklevel=5)
    size = getattr(model, "image_size", None) or tuple(noted.get("input_size", (3, *usual.size)))[-2:]
    size = size if isinstance(size, tuple) else (size, size)
    return timm_preprocess({**noted, "input_size": size}) if noted else replace(usual, size=size)
