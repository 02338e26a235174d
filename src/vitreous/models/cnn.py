"""Convolutional networks: a model whose tokens are the places of feature maps.

A chain of modules, each of which gets the feature map that the one before it gave, is all that a family has to name.
``embed`` runs the model's own forward up to the chain, ``forward_head`` runs it with the chain stepping aside, so that
whatever comes before and after is the model's, line by line. The rest is found by running one image: widths, grids,
how many activations there are, and that nothing passes beside the chain.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, VitreousWarning, nearest
from vitreous.models.base import VisionModel
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import exact_pass, failing_forward, gap, overridden, remembered
from vitreous.models.structure import NODES, count_operations, operations_in
from vitreous.models.submodels import run_until, select_logits

Chain = tuple[tuple[str, ...], ...]
"""The paths of the modules of every block, in the order in which they run; what follows a stage ends its last block."""


def by_stages(stages: Sequence[Sequence[str]], after: Sequence[Sequence[str]] = ()) -> Chain:
    """One block for each path of every stage; what runs ``after`` a stage ends its last block."""
    blocks: list[tuple[str, ...]] = []
    for number, stage in enumerate(stages):
        blocks += [(path,) for path in stage]
        blocks[-1] += tuple(after[number]) if after else ()
    return tuple(blocks)


def resnet_chain(model: Any) -> Chain:
    """One block for each residual block of ``layer1`` to ``layer4``."""
    return by_stages([[f"layer{n}.{m}" for m in range(len(getattr(model, f"layer{n}")))] for n in range(1, 5)])


def by_convolutions(model: Any) -> Chain:
    """One block for each convolution of ``features``, with all that follows it up to the next.

    What pools the last of them belongs to the head, so that the last map is that of the last convolution, rectified.
    """
    *blocks, last = _cut_features(model, lambda name, module: isinstance(module, nn.Conv2d))
    pools = nn.MaxPool2d | nn.AvgPool2d
    return *blocks, tuple(path for path in last if not isinstance(model.get_submodule(path), pools))


def dense_chain(model: Any) -> Chain:
    """One block for each dense block of ``features``, with what follows it: a transition, or the last norm.

    Inside a dense block every layer reads all layers before it, so that it cannot be cut further.
    """
    return _cut_features(model, lambda name, module: name.startswith("denseblock"))


def _cut_features(model: Any, begins: Callable[[str, nn.Module], bool]) -> Chain:
    blocks: list[tuple[str, ...]] = []
    for name, module in model.features.named_children():
        if begins(name, module):
            blocks.append((f"features.{name}",))
        elif blocks:
            blocks[-1] += (f"features.{name}",)
    return tuple(blocks)


_NO_TOKENS = "it has no attention between tokens, and a block shows only its input and its output"
V = TypeVar("V", bound="ConvModel")


class _Facts(NamedTuple):
    """What one image tells about a chain."""

    shapes: tuple[tuple[int, int, int], ...]
    """Channels, rows and columns of what enters each block, and of what leaves the last."""
    counts: tuple[Mapping[str, int], ...]
    changing: frozenset[int]
    """Blocks that change their input in place, and the depth if the head does: they get a copy."""
    aside: tuple[str, ...]
    """Modules that run before the end of the chain, and need not run again for what follows it."""
    classes: int
    is_relu_only: bool


class ConvModel(VisionModel):
    """A convolutional network, as a chain of blocks between feature maps ``[B, C, h, w]``.

    Tokens are the places of a feature map, ``[B, h w, C]``: the same memory, in another order. ``grid(inputs)`` is
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
        usual_names: list[str] | None = None,
    ) -> None:
        self.module, self.chain, self.output_key, self.cut = model, chain, output_key, cut
        self.identity_extras = chain, output_key
        self.family = getattr(type(self), "family", "cnn")
        self.name = name or type(model).__name__
        self.preprocess = preprocess or _preprocess(model, self.name)
        self.depth, self.pooling, self.num_classes, self.class_names = len(chain), Pooling("avg", 0), 0, class_names
        if headless:  # a part of a larger model, which is wrapped as a whole
            return
        key = (type(self), self.chain, self.output_key, self.preprocess.size, self.dtype)
        self._facts = remembered(model, key, self._find_facts)
        self.is_relu_only, self.embed_dim = self._facts.is_relu_only, self._facts.shapes[-1][0]
        layers = itertools.groupby(range(self.depth), key=lambda layer: self.grid(layer=layer))
        stages = [list(stage) for _, stage in layers]
        self.stages = tuple(range(stage[0], stage[-1] + 1) for stage in stages) if len(stages) > 1 else ()
        self._set_classes(self._facts.classes, class_names, usual_names)

    def ending(self, path: str) -> ConvModel:
        """Return the model whose last feature map is what the module at ``path`` gives."""
        chain: Chain = ((path,),)
        layers = [layer for layer, links in enumerate(self.chain) if any(_within(link, path) for link in links)]
        if layers:
            links = self.chain[layers[-1]]
            end = max(number for number, link in enumerate(links) if _within(link, path))
            chain = (*self.chain[: layers[-1]], links[: end + 1])
        return ConvModel(self.module, chain, self.name, self.class_names, self.preprocess, self.output_key, cut=path)

    def wrap_in(self, module: nn.Module, path: str, **facts: Any) -> VisionModel:
        chain = tuple(tuple(f"{path}.{link}" for link in links) for links in self.chain) if path else self.chain
        name = f"{type(module).__name__} around {self.name}" if path else self.name
        options: dict[str, Any] = {"name": name, "preprocess": self.preprocess, "usual_names": self.class_names}
        options |= {key: value for key, value in facts.items() if value is not None}
        return ConvModel(module, chain, **options)

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return _flat(self.shared_copy()._reach(inputs))

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            self.select_tokens(tokens, keep)  # refuses
        return _flat(self.shared_copy()._run_block(layer, self._features(tokens, layer)))

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.shared_copy()._run_head(self._features(tokens, self.depth), self._facts.aside)

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return select_logits(self.name, self.output_key, self.module(inputs))

    def shared_copy(self: V, own_tensors: bool = False) -> V:
        """Return a shared copy whose modules change nothing in place, and compute nothing twice to save memory."""
        copied = super().shared_copy(own_tensors)
        if copied is not self:
            for module in copied.module.modules():
                for flag in ("inplace", "grad_checkpointing"):
                    if vars(module).get(flag) is True:  # getattr takes its time where there is none
                        vars(module)[flag] = False
        return copied

    def _reach(self, inputs: Tensor) -> Tensor:
        """Run a shared copy up to the chain."""
        path = self.chain[0][0]
        features = run_until(self._part(path), self.module, inputs)
        if features is None:
            raise ModelError(f"{self.name}: its forward never comes to {path!r}")
        return self._feature_map(path, "is given", features)

    def _run_block(self, layer: int, features: Tensor) -> Tensor:
        for path in self.chain[layer]:
            features = self._feature_map(path, "gives", self._part(path)(features))
        return features

    def _run_head(self, features: Tensor, aside: Sequence[str]) -> Tensor:
        """Run what follows the chain: the model's own forward of a blank image, with what comes before stepping aside.

        One blank image serves a whole batch, because the end of the chain gives the features whatever it gets.
        """
        overrides: list[Any] = [(self._part(path), "forward", lambda value, *_, **__: value) for path in aside]
        overrides.append((self._part(self.chain[-1][-1]), "forward", lambda *_, **__: features))
        with overridden(*overrides):
            return self.reference_forward(self._blank_image())

    # -- facts about layers ----------------------------------------------------------------------------

    def grid(self, inputs: Tensor | None = None, layer: int | None = None) -> tuple[int, int]:
        """Return rows and columns of what enters a block; without a layer, of the last feature map."""
        return self._facts.shapes[self.depth if layer is None else layer][1:]

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.grid(inputs)

    def embed_dim_at(self, layer: int) -> int:
        return self._facts.shapes[layer][0]

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        raise ModelError(f"{self.name} cannot show {name} of block {layer}: {_NO_TOKENS}")

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        return {} if layer is None else self._facts.counts[layer]

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        self._check_size(inputs, advice="; give img_size= to load, or preprocess= to wrap")

    def _features(self, tokens: Tensor, layer: int) -> Tensor:
        """Return tokens as a feature map, a copy where the block would change it."""
        _, height, width = self._facts.shapes[layer]
        features = tokens.transpose(1, 2).reshape(len(tokens), -1, height, width)
        return features.clone() if layer in self._facts.changing else features

    def _part(self, path: str) -> nn.Module:
        try:
            return self.module.get_submodule(path)
        except AttributeError:
            names = [name for name, _ in self.module.named_modules() if name]
            children = ", ".join(name for name, _ in self.module.named_children())
            advice = nearest(path, names) or f"; it has {children}"
            raise ModelError(f"{self.name} has no layer {path!r}{advice}") from None

    def _feature_map(self, path: str, does: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.ndim != 4:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"{self.name}: {path} {does} {got}, not a feature map [B, C, h, w]; name another layer")
        return value

    # -- what one image tells --------------------------------------------------------------------------

    def _find_facts(self) -> _Facts:
        with exact_pass(self), failing_forward(self.name, "one image"):
            return self.shared_copy(own_tensors=True)._probe()

    def _probe(self) -> _Facts:
        noise = torch.randn(1, 3, *self.preprocess.size, generator=torch.Generator().manual_seed(0))
        image = noise.to(self.device, self.dtype)
        with torch.enable_grad():
            expected, aside = self._run_in_order(image.clone().requires_grad_())
        activations = set(operations_in(expected)) & set(NODES["activation"])
        is_relu_only = "Relu" in activations and activations <= {"Relu", "Sigmoid", "Hardsigmoid"}
        features = self._reach(image)
        shapes, counts, changing = [_shape(features)], list[Mapping[str, int]](), set[int]()
        for layer in range(self.depth):
            with torch.enable_grad():
                entering = features.detach().requires_grad_().clone()
                version = entering._version
                leaving = self._run_block(layer, entering)
            changing |= {layer} if entering._version != version else set()
            counts.append({**count_operations(leaving), "attention": 0})
            features = leaving.detach()
            shapes.append(_shape(features))
        aside, is_changed = self._check_head(features, expected.detach(), aside)
        changing |= {self.depth} if is_changed else set()
        return _Facts(tuple(shapes), tuple(counts), frozenset(changing), aside, expected.shape[1], is_relu_only)

    def _check_head(self, features: Tensor, expected: Tensor, aside: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        """Return what can step aside before the head runs, and whether the head changes its input in place."""
        twice = features.expand(2, -1, -1, -1)
        for paths in (aside, ()):
            entering = twice.clone()
            version = entering._version
            try:
                logits = self._run_head(entering, paths)
            except Exception:  # something between them needs what they give
                if paths:
                    continue
                raise
            if logits.shape[1:] == expected.shape[1:] and len(logits) == 2 and not gap(logits, expected)[1]:
                return paths, entering._version != version
        reason = "something passes beside it; name a layer that everything passes, such as a whole stage"
        raise ModelError(f"{self.name}: what {self.chain[-1][-1]} gives does not decide its output: {reason}")

    def _run_in_order(self, image: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Return the logits of an image, and which modules have done their work before the last of the chain begins."""
        links, events, handles = list(itertools.chain(*self.chain)), list[tuple[str, str]](), list[Any]()
        for path in links:
            self._part(path)
        for path, module in self.module.named_modules():
            handles.append(module.register_forward_pre_hook(lambda *_, path=path: events.append(("start", path))))
            handles.append(module.register_forward_hook(lambda *_, path=path: events.append(("end", path))))
        logits = self.reference_forward(image)
        for handle in handles:
            handle.remove()
        for path in links:
            if (count := events.count(("start", path))) != 1:
                raise ModelError(f"{self.name}: {path} runs {count} times, and a place must run once")
        done = [path for event, path in events[: events.index(("start", links[-1]))] if event == "end"]
        return logits, tuple(path for path in done if not any(path.startswith(f"{above}.") for above in done))

    def __repr__(self) -> str:
        (height, width), last = self.grid(), self.chain[-1][-1]
        return (
            f"VisionModel({self.name}: {self.depth} blocks, {height}x{width} places of {self.embed_dim} channels at "
            f"{last}, {self.num_classes} classes)"
        )


def _flat(features: Tensor) -> Tensor:
    return features.flatten(2).transpose(1, 2)


def _shape(features: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = features.shape
    return channels, height, width


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")


def _preprocess(model: nn.Module, name: str) -> Preprocess:
    """Return what a model notes about its images, as timm's do; ImageNet's usual way, loudly, where it does not."""
    config = getattr(model, "pretrained_cfg", None)
    config = config if isinstance(config, Mapping) else {}
    if not {"mean", "std"} <= config.keys():
        text = f"{name} does not say how its pictures are prepared: ImageNet's usual way is taken; give preprocess="
        warnings.warn(text, VitreousWarning, stacklevel=5)
    size = getattr(model, "image_size", None) or tuple(config.get("input_size", (3, *Preprocess.size)))[-2:]
    size = size if isinstance(size, tuple) else (size, size)
    return Preprocess.from_timm(config, size) if config else replace(Preprocess(), size=size)
