"""For every method a bare yardstick: the passes that its definition needs, and nothing else. Used by ``methods.py``.

``F`` is a forward, ``B`` a backward that ends where the definition ends: at the image, at the input of block 0, or in
the last block; weights have no gradients. Attention is fused, or *written out* (timm's ``fused_attn=False``) in the
blocks whose attention weights the definition reads: such a pass is slower by itself, and the line says so. Inner
batches are those of the method. Walks are in float64: one F of a float64 copy of the model for the activations, then as
many F and B as a rule has products per layer there and back: two for rules that part weights by sign, four for gamma,
the plain ``lrp``. Perturbation
is held against as many F as the method runs, TIS against its samples at their length, embedded once, the bottleneck
methods against one F and the replicas' F and B from the first bottleneck on. Nothing is damped, masked, clustered,
drawn or picked here. What takes its time elsewhere (``alti``, ``attention_flow``, the regions of ``xrai``) has none,
and ``globenc`` and ``attin_rollout``, which measure N x N vectors in every block beside their pass, no limit.
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
"""What a method may take over its bare passes: all of them, and the perturbation family."""


class Naked:
    """A model of its own to run bare, in float32 and, when it is asked for, in float64."""

    def __init__(self, model: vt.VisionModel) -> None:
        self.view = vt.wrap(copy.deepcopy(model.module))

    @cached_property
    def double(self) -> vt.VisionModel:
        return vt.wrap(copy.deepcopy(self.view.module).double())


@dataclass(frozen=True)
class Job:
    """What to run bare: the images, the method, how many inputs go together and how many it ran in all."""

    naked: Naked
    images: Tensor
    how: Any
    part: int
    total: int

    @property
    def view(self) -> vt.VisionModel:
        return self.naked.view

    @property
    def whole(self) -> int:
        """As many copies of all images as go together, in inputs."""
        return max(1, self.part // len(self.images)) * len(self.images)


Bare = Callable[[Job], object]


@dataclass(frozen=True)
class Yardstick:
    """The bare passes of a method, in words and as work; ``spelling`` where its own counts would take too long."""

    what: str
    work: Bare = field(compare=False)
    spelling: str = ""
    limit: float | None = FEW
    long: bool = False


# -- passes ---------------------------------------------------------------------------------------------------


@contextmanager
def written(model: vt.VisionModel, blocks: Iterable[int]) -> Iterator[None]:
    """Inside, attention of these blocks is written out."""
    for block in blocks:
        model.module.blocks[block].attn.fused_attn = False
    try:
        yield
    finally:
        for block in blocks:
            model.module.blocks[block].attn.fused_attn = True


def copies(inputs: Tensor, total: int, part: int) -> Iterator[Tensor]:
    """Yield ``total`` inputs, ``part`` at a time: these ones again and again."""
    batch = inputs[torch.arange(min(part, total), device=inputs.device) % len(inputs)]
    for start in range(0, total, part):
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


def place(model: vt.VisionModel, end: str) -> int | None:
    return {"none": None, "image": -1, "first": 0, "last": model.depth - 1}[end]


def blocks_of(model: vt.VisionModel, which: str) -> range:
    return {"no": range(0), "first": range(1), "last": range(model.depth - 1, model.depth), "all": range(model.depth)}[
        which
    ]


def single(job: Job, end: str, attention: str = "no") -> None:
    with written(job.view, blocks_of(job.view, attention)):
        once(job.view, job.images, place(job.view, end))


# -- many passes ----------------------------------------------------------------------------------------------


def forwards(job: Job, attention: str = "no") -> None:
    """As many F as the method has run."""
    with written(job.view, blocks_of(job.view, attention)):
        for subset in copies(job.images, job.total, job.part):
            once(job.view, subset)


def suppressed(job: Job) -> None:
    """As many F from block 0 on, attention written out."""
    with written(job.view, range(job.view.depth)), torch.no_grad():
        once(job.view, job.images)
        tokens = job.view.embed(job.images)
        for subset in copies(tokens, job.total - len(tokens), job.part):
            job.view.forward_head(job.view.forward_blocks(subset))


def last_blocks(job: Job) -> None:
    """One F, and one F of the last block for every channel."""
    last = job.view.depth - 1
    with torch.no_grad():
        tokens = job.view.forward_blocks(job.view.embed(job.images), 0, last)
        job.view.forward_head(job.view.forward_blocks(tokens, last))
        for subset in copies(tokens, job.total - len(tokens), job.part):
            job.view.forward_head(job.view.forward_blocks(subset, last))


def path(job: Job) -> None:
    """One F to know the class, and as many F + B to the image as the method has run."""
    once(job.view, job.images)
    for subset in copies(job.images, job.total - len(job.images), job.whole):
        once(job.view, subset, -1)


def steps(job: Job) -> None:
    """The same, one step of all images after the other."""
    once(job.view, job.images)
    for _ in range(job.how.steps):
        once(job.view, job.images, -1)


def feedback(job: Job, end: str) -> None:
    """F + B of the image, with attention written out in all blocks, and F + B of the last block at all other points."""
    last, more = job.view.depth - 1, (job.how.steps - 1) * len(job.images)
    with written(job.view, range(job.view.depth)):
        once(job.view, job.images, place(job.view, end))
    with written(job.view, [last]):
        for subset in copies(job.images, more, job.whole):
            once(job.view, subset, last)


def two_paths(job: Job) -> None:
    once(job.view, job.images)
    points = (job.how.steps + 1) * len(job.images)
    with written(job.view, range(job.view.depth)):
        for subset in copies(job.images, points * (job.how.steps + 1), min(points, job.whole)):
            once(job.view, subset, 0)


def lenses(job: Job, each: bool, through: bool) -> None:
    """One F (and B), then F + B of each block alone, its output read by the head."""
    model, inputs = job.view, []
    with written(model, range(model.depth if through else 0)), torch.set_grad_enabled(through):
        tokens = start = model.embed(job.images).detach().requires_grad_(through)
        for layer in range(model.depth):
            inputs.append(tokens)
            tokens = model.forward_block(layer, tokens)
        logits = model.forward_head(tokens)
        if through:
            torch.autograd.grad(logits[:, 0].sum(), start)
    with written(model, range(model.depth)):
        for layer, before in enumerate(inputs):
            alone, leaf = model.logit_lens(layer, each), before.detach().requires_grad_()
            torch.autograd.grad(alone.forward_head(alone.forward_blocks(leaf))[:, 0].sum(), leaf)


def walk(job: Job, end: str, products: int, gradient: bool = False) -> None:
    """One F in float64, then F + B for each product of a rule; before that F + B in float32 for a gradient, if any."""
    if gradient:
        single(job, end, "all")
    model, images = job.naked.double, job.images.double()
    with written(model, blocks_of(model, "last" if end == "last" else "all")):
        with torch.no_grad():
            below = model.forward_blocks(model.embed(images), 0, model.depth - 1)
            model.forward_head(model.forward_blocks(below, model.depth - 1))
        images = below if end == "last" else images
        for _ in range(products):
            once(model, images, place(model, end))


def bottlenecks(job: Job, starts: Iterable[int]) -> None:
    """One F, and from every start on one F and B of every replica in every update."""
    model, method = job.view, job.how
    with torch.no_grad():
        tokens, inputs = model.embed(job.images), []
        for layer in range(model.depth):
            inputs.append(tokens)
            tokens = model.forward_block(layer, tokens)
        model.forward_head(tokens)
    inputs.append(tokens)
    for start in starts:
        for _ in range(method.updates):
            for subset in copies(inputs[start], len(job.images) * method.samples, job.part):
                leaf = subset.detach().requires_grad_()
                logits = model.forward_head(model.forward_blocks(leaf, start))
                torch.autograd.grad(logits[:, 0].sum(), leaf)


def from_first(job: Job) -> None:
    bottlenecks(job, job.how.layers(job.view)[:1])


def from_outputs(job: Job) -> None:
    bottlenecks(job, [layer + 1 for layer in job.how.layers(job.view)])


def samples(job: Job, half: bool = False) -> None:
    """One F, and F of samples of half of the patches, from block 0 on."""
    model, images = job.view.shared_copy(), job.images
    number = int(job.how.ratio * math.prod(model.grid(images)))
    once(job.view, images)
    with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=half):
        tokens = model.embed(images)[:, : model.num_prefix_tokens + number]
        keep = torch.arange(number, device=images.device).expand(job.part, -1)
        for subset in copies(tokens, job.total - len(images), job.part):
            model.forward_head(model.forward_blocks(subset, keep=keep[: len(subset)]))


# -- the table ------------------------------------------------------------------------------------------------

OUT = ", attention written out"


def _few(what: str, end: str, attention: str, names: str) -> dict[str, Yardstick]:
    message = {"no": "", "first": f"{OUT} in the first block", "last": f"{OUT} in the last block", "all": OUT}[
        attention
    ]
    return dict.fromkeys(names.split(), Yardstick(what + message, partial(single, end=end, attention=attention)))


def _walk(what: str, end: str, products: int, gradient: bool = False) -> Yardstick:
    return Yardstick(f"{what}{OUT}", partial(walk, end=end, products=products, gradient=gradient))


def _many(what: str, work: Bare, spec: str = "", limit: float = FEW) -> Yardstick:
    return Yardstick(what, work, spec, limit, long=True)


BARE: dict[str, Yardstick] = {
    **_few("1 F", "none", "no", "eigencam"),
    **_few("1 F", "none", "last", "raw_attention attin"),
    **_few("1 F", "none", "all", "rollout"),
    "attin_rollout": Yardstick(f"1 F{OUT}", partial(single, end="none", attention="all"), limit=None),
    "globenc": Yardstick(f"1 F{OUT}", partial(single, end="none", attention="all"), limit=None),
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
    "legrad": Yardstick(f"1 F + F and B of each block alone{OUT}", partial(lenses, each=False, through=False)),
    "inflow": Yardstick(f"1 F + 1 B + F and B of each block alone{OUT}", partial(lenses, each=True, through=True)),
    "lrp": _walk("5 F + 4 B in float64", "first", 4),
    "lrp_rollout": _walk("3 F + 2 B in float64", "first", 2),
    "full_lrp": _walk("3 F + 2 B to the image in float64", "image", 2),
    "partial_lrp": _walk("1 F in float64, 2 F + 2 B of its last block", "last", 2),
    "transatt": _walk("1 F + 1 B, 3 F + 2 B in float64", "first", 2, gradient=True),
    "tam": _many(f"steps x (F + B of the last block{OUT})", partial(feedback, end="last")),
    "bt_t": _many(f"steps x (F + B of the last block{OUT})", partial(feedback, end="last")),
    "bt_h": _many(f"F + B, then steps - 1 x (F + B of the last block{OUT})", partial(feedback, end="first")),
    "iia": _many(f"runs x (F + B){OUT}", two_paths, "iia(steps=3)"),
    "integrated_gradients": _many("steps x (F + B to the image)", path, "integrated_gradients(steps=30)"),
    "blur_ig": _many("steps x (F + B to the image)", path, "blur_ig(steps=30)"),
    "gradient_shap": _many("samples x (F + B to the image)", path, "gradient_shap(samples=30)"),
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
ELSEWHERE = {"alti": "alti", "attention_flow": "attention_flow", "xrai": "xrai(steps=20)"}
"""What takes its time elsewhere: seconds per image."""


def missing() -> list[str]:
    """Return the methods for transformers that have neither."""
    values = [
        info
        for info in vt.list_methods()
        if not (info.is_combinator or info.family == "yardstick" or info.models == "ReLU")
    ]
    return [info.name for info in values if info.name not in BARE and info.name not in ELSEWHERE]
