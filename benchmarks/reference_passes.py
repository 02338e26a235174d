"""For every method its reference passes: those that its definition needs, and nothing else. Used by ``methods.py``.

``F`` is a forward, ``B`` a backward that ends where the definition ends: at the image, at the input of block 0, or in
the last block; weights have no gradients. Attention is fused, or *written out* (timm's ``fused_attn=False``) in the
blocks whose attention weights the definition reads: such a pass is slower by itself, and the description says so. Inner
batches are those of the method. Relevance propagation is in float64: one F of a float64 copy of the model for the
activations, then as many F and B as a rule has products per layer there and back: two for rules that separate weights
by sign, four for gamma, the plain ``lrp``. Perturbation is compared with as many F as the method runs, TIS with its
samples at their length, embedded once, the bottleneck methods with one F and the replicas' F and B from the first
bottleneck on. Nothing is damped, masked, clustered, drawn or selected here. Methods with other costs (``alti``,
``attention_flow``, the regions of ``xrai``) have no reference passes, and ``globenc`` and ``attin_rollout``, which
measure N x N vectors in every block beside their pass, no limit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import vitreous as vt

FEW, MANY = 1.3, 1.5
"""The time that a method may take over its reference passes: all methods, and the perturbation family."""


class ReferenceModel:
    """A copy of the model to run the reference passes on, in float32 and, when it is asked for, in float64."""

    def __init__(self, model: vt.VisionModel) -> None:
        self.model = vt.wrap(copy.deepcopy(model.module))

    @cached_property
    def double(self) -> vt.VisionModel:
        return vt.wrap(copy.deepcopy(self.model.module).double())


@dataclass(frozen=True)
class PassConfig:
    """What to run: the images, the method, the inputs of one batch and of all batches that the method ran."""

    reference: ReferenceModel
    images: Tensor
    method: Any
    batch: int
    total: int

    @property
    def model(self) -> vt.VisionModel:
        return self.reference.model

    @property
    def batch_of_copies(self) -> int:
        """As many copies of all images as fit in a batch, in inputs."""
        return max(1, self.batch // len(self.images)) * len(self.images)


Work = Callable[[PassConfig], object]


@dataclass(frozen=True)
class ReferencePasses:
    """The passes that a method needs, in words and as work; ``spec`` where its own counts would take too long."""

    description: str
    work: Work = field(compare=False)
    spec: str = ""
    limit: float | None = FEW
    is_long: bool = False


# -- passes ----------------------------------------------------------------------------------------------------


@contextmanager
def explicit_attention(model: vt.VisionModel, blocks: Iterable[int]) -> Iterator[None]:
    """Write the attention of these blocks out in this context."""
    for block in blocks:
        model.module.blocks[block].attn.fused_attn = False
    try:
        yield
    finally:
        for block in blocks:
            model.module.blocks[block].attn.fused_attn = True


def copies(inputs: Tensor, total: int, size: int) -> Iterator[Tensor]:
    """Yield ``total`` inputs, ``size`` at a time: these ones again and again."""
    batch = inputs[torch.arange(min(size, total), device=inputs.device) % len(inputs)]
    for start in range(0, total, size):
        yield batch[: total - start]


def once(model: vt.VisionModel, inputs: Tensor, end: int | None = None) -> None:
    """One F, and one B that ends at the input of block ``end``, -1 for the image; images or tokens of that block."""
    if end is None:
        with torch.no_grad():
            model.module(inputs)
        return
    with torch.no_grad():
        tokens = model.forward_blocks(model.embed(inputs), 0, end) if end >= 0 and inputs.ndim == 4 else inputs
    leaf = tokens.detach().requires_grad_()
    logits = model.module(leaf) if end < 0 else model.forward_head(model.forward_blocks(leaf, end))
    torch.autograd.grad(logits[:, 0].sum(), leaf)


def end_block(model: vt.VisionModel, end: str) -> int | None:
    return {"none": None, "image": -1, "first": 0, "last": model.depth - 1}[end]


def blocks_of(model: vt.VisionModel, which: str) -> range:
    return {"no": range(0), "first": range(1), "last": range(model.depth - 1, model.depth), "all": range(model.depth)}[
        which
    ]


def single(config: PassConfig, end: str, attention: str = "no") -> None:
    with explicit_attention(config.model, blocks_of(config.model, attention)):
        once(config.model, config.images, end_block(config.model, end))


# -- many passes -----------------------------------------------------------------------------------------------


def forwards(config: PassConfig, attention: str = "no") -> None:
    """As many F as the method has run."""
    with explicit_attention(config.model, blocks_of(config.model, attention)):
        for subset in copies(config.images, config.total, config.batch):
            once(config.model, subset)


def suppressed(config: PassConfig) -> None:
    """As many F from block 0 on, attention written out."""
    with explicit_attention(config.model, range(config.model.depth)), torch.no_grad():
        once(config.model, config.images)
        tokens = config.model.embed(config.images)
        for subset in copies(tokens, config.total - len(tokens), config.batch):
            config.model.forward_head(config.model.forward_blocks(subset))


def last_blocks(config: PassConfig) -> None:
    """One F, and one F of the last block for every channel."""
    last = config.model.depth - 1
    with torch.no_grad():
        tokens = config.model.forward_blocks(config.model.embed(config.images), 0, last)
        config.model.forward_head(config.model.forward_blocks(tokens, last))
        for subset in copies(tokens, config.total - len(tokens), config.batch):
            config.model.forward_head(config.model.forward_blocks(subset, last))


def integration_path(config: PassConfig) -> None:
    """One F to know the class, and as many F + B to the image as the method has run."""
    once(config.model, config.images)
    for subset in copies(config.images, config.total - len(config.images), config.batch_of_copies):
        once(config.model, subset, -1)


def steps(config: PassConfig) -> None:
    """The same, one step of all images after the other."""
    once(config.model, config.images)
    for _ in range(config.method.steps):
        once(config.model, config.images, -1)


def feedback(config: PassConfig, end: str) -> None:
    """F + B of the image, with attention written out in all blocks, and F + B of the last block at all other points."""
    last, more = config.model.depth - 1, (config.method.steps - 1) * len(config.images)
    with explicit_attention(config.model, range(config.model.depth)):
        once(config.model, config.images, end_block(config.model, end))
    with explicit_attention(config.model, [last]):
        for subset in copies(config.images, more, config.batch_of_copies):
            once(config.model, subset, last)


def two_paths(config: PassConfig) -> None:
    once(config.model, config.images)
    points = (config.method.steps + 1) * len(config.images)
    with explicit_attention(config.model, range(config.model.depth)):
        for subset in copies(config.images, points * (config.method.steps + 1), min(points, config.batch_of_copies)):
            once(config.model, subset, 0)


def lenses(config: PassConfig, per_token: bool, has_backward: bool) -> None:
    """One F (and B), then F + B of each block alone, its output read by the head."""
    model, inputs = config.model, []
    with explicit_attention(model, range(model.depth if has_backward else 0)), torch.set_grad_enabled(has_backward):
        tokens = start = model.embed(config.images).detach().requires_grad_(has_backward)
        for layer in range(model.depth):
            inputs.append(tokens)
            tokens = model.forward_block(layer, tokens)
        logits = model.forward_head(tokens)
        if has_backward:
            torch.autograd.grad(logits[:, 0].sum(), start)
    with explicit_attention(model, range(model.depth)):
        for layer, before in enumerate(inputs):
            alone, leaf = model.logit_lens(layer, per_token), before.detach().requires_grad_()
            torch.autograd.grad(alone.forward_head(alone.forward_blocks(leaf))[:, 0].sum(), leaf)


def propagation(config: PassConfig, end: str, products: int, gradient: bool = False) -> None:
    """One F in float64, then F + B for each product of a rule; before that F + B in float32 for a gradient, if any."""
    if gradient:
        single(config, end, "all")
    model, images = config.reference.double, config.images.double()
    with explicit_attention(model, blocks_of(model, "last" if end == "last" else "all")):
        with torch.no_grad():
            below = model.forward_blocks(model.embed(images), 0, model.depth - 1)
            model.forward_head(model.forward_blocks(below, model.depth - 1))
        images = below if end == "last" else images
        for _ in range(products):
            once(model, images, end_block(model, end))


def bottlenecks(config: PassConfig, starts: Iterable[int]) -> None:
    """One F, and from every start on one F and B of every replica in every update."""
    model, method = config.model, config.method
    with torch.no_grad():
        tokens, inputs = model.embed(config.images), []
        for layer in range(model.depth):
            inputs.append(tokens)
            tokens = model.forward_block(layer, tokens)
        model.forward_head(tokens)
    inputs.append(tokens)
    for start in starts:
        for _ in range(method.updates):
            for subset in copies(inputs[start], len(config.images) * method.samples, config.batch):
                leaf = subset.detach().requires_grad_()
                logits = model.forward_head(model.forward_blocks(leaf, start))
                torch.autograd.grad(logits[:, 0].sum(), leaf)


def from_first(config: PassConfig) -> None:
    bottlenecks(config, config.method.layers(config.model)[:1])


def from_outputs(config: PassConfig) -> None:
    bottlenecks(config, [layer + 1 for layer in config.method.layers(config.model)])


def samples(config: PassConfig, half: bool = False) -> None:
    """One F, and F of samples of half of the patches, from block 0 on."""
    model, images = config.model.shared_copy(), config.images
    number = int(config.method.ratio * math.prod(model.grid(images)))
    once(config.model, images)
    with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=half):
        tokens = model.embed(images)[:, : model.num_prefix_tokens + number]
        keep = torch.arange(number, device=images.device).expand(config.batch, -1)
        for subset in copies(tokens, config.total - len(images), config.batch):
            model.forward_head(model.forward_blocks(subset, keep=keep[: len(subset)]))


# -- the table -------------------------------------------------------------------------------------------------

OUT = ", attention written out"


def _few(what: str, end: str, attention: str, names: str) -> dict[str, ReferencePasses]:
    message = {"no": "", "first": f"{OUT} in the first block", "last": f"{OUT} in the last block", "all": OUT}[
        attention
    ]
    return dict.fromkeys(names.split(), ReferencePasses(what + message, partial(single, end=end, attention=attention)))


def _propagation(what: str, end: str, products: int, gradient: bool = False) -> ReferencePasses:
    return ReferencePasses(f"{what}{OUT}", partial(propagation, end=end, products=products, gradient=gradient))


def _many(what: str, work: Work, spec: str = "", limit: float = FEW) -> ReferencePasses:
    return ReferencePasses(what, work, spec, limit, is_long=True)


REFERENCE_PASSES: dict[str, ReferencePasses] = {
    **_few("1 F", "none", "no", "eigencam"),
    **_few("1 F", "none", "last", "raw_attention attin"),
    **_few("1 F", "none", "all", "rollout"),
    "attin_rollout": ReferencePasses(f"1 F{OUT}", partial(single, end="none", attention="all"), limit=None),
    "globenc": ReferencePasses(f"1 F{OUT}", partial(single, end="none", attention="all"), limit=None),
    **_few("1 F + 1 B", "first", "no", "gradient ixg cat fullgrad fullgrad_plus"),
    **_few("1 F + 1 B", "first", "first", "attixg"),
    **_few("1 F + 1 B", "first", "all", "generic grad_rollout gradsam attcat decompx vtranm cp_lrp attnlrp"),
    **_few("1 F + 1 B of the last block", "last", "last", "attgrad attcam"),
    **_few(
        "1 F + 1 B of the last block",
        "last",
        "no",
        "gradcam hirescam gradcam_pp xgradcam xgradcam_plus layercam gradcam_elementwise eigengradcam",
    ),
    **_few("1 F + 1 B to the image", "image", "no", "saliency input_x_gradient"),
    "legrad": ReferencePasses(
        f"1 F + F and B of each block alone{OUT}", partial(lenses, per_token=False, has_backward=False)
    ),
    "inflow": ReferencePasses(
        f"1 F + 1 B + F and B of each block alone{OUT}", partial(lenses, per_token=True, has_backward=True)
    ),
    "lrp": _propagation("5 F + 4 B in float64", "first", 4),
    "lrp_rollout": _propagation("3 F + 2 B in float64", "first", 2),
    "full_lrp": _propagation("3 F + 2 B to the image in float64", "image", 2),
    "partial_lrp": _propagation("1 F in float64, 2 F + 2 B of its last block", "last", 2),
    "transatt": _propagation("1 F + 1 B, 3 F + 2 B in float64", "first", 2, gradient=True),
    "tam": _many(f"steps x (F + B of the last block{OUT})", partial(feedback, end="last")),
    "bt_t": _many(f"steps x (F + B of the last block{OUT})", partial(feedback, end="last")),
    "bt_h": _many(f"F + B, then steps - 1 x (F + B of the last block{OUT})", partial(feedback, end="first")),
    "iia": _many(f"runs x (F + B){OUT}", two_paths, "iia(steps=3)"),
    "integrated_gradients": _many("steps x (F + B to the image)", integration_path, "integrated_gradients(steps=30)"),
    "blur_ig": _many("steps x (F + B to the image)", integration_path, "blur_ig(steps=30)"),
    "gradient_shap": _many("samples x (F + B to the image)", integration_path, "gradient_shap(samples=30)"),
    "guided_ig": _many("steps x (F + B to the image), one after the other", steps, "guided_ig(steps=20)"),
    "scorecam": _many("1 F + channels x F", forwards, "scorecam(channels=100)"),
    "ablationcam": _many("1 F + channels x F of the last block", last_blocks),
    "rise": _many("masks x F", forwards, "rise(masks=200)", MANY),
    "occlusion": _many("1 F + patches x F", forwards, "", MANY),
    "lime": _many("samples x F", forwards, "lime(samples=250)", MANY),
    "kernel_shap": _many("samples x F", forwards, "kernel_shap(samples=250)", MANY),
    "hsic": _many("masks x F", forwards, "hsic(masks=200)", MANY),
    "vit_cx": _many("1 F + 2 masks x F", forwards, "", MANY),
    "atman": _many(f"1 F + patches x F{OUT}", suppressed, "", MANY),
    "tis": _many("1 F + masks x F of half of the patches", samples, "tis(masks=256)"),
    "coiba": _many("1 F + replicas x (F + B from the first bottleneck on)", from_first),
    "iba": _many("1 F + replicas x (F + B from the bottleneck on)", from_outputs),
    "iba_star": _many("1 F + replicas x (F + B from each bottleneck on)", from_outputs, "iba_star(steps=2)"),
}
TIMED_ALONE = {"alti": "alti", "attention_flow": "attention_flow", "xrai": "xrai(steps=20)"}
"""Methods whose time does not go to passes: seconds per image."""


def missing() -> list[str]:
    """Return the methods for transformers that have no entry in either table."""
    values = [
        info
        for info in vt.list_methods()
        if not (info.is_combinator or info.family == "control" or info.models == "ReLU")
    ]
    return [info.name for info in values if info.name not in REFERENCE_PASSES and info.name not in TIMED_ALONE]
