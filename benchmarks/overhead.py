"""What explaining costs: each method's time over the unmodified model's forward + input gradient.

Run ``python benchmarks/overhead.py``. All times come from one run on one machine, methods interleaved round by round;
the figures that matter are the ratios of medians. The reference is the model with explicit attention (as every tool
that needs attention runs it), forward and gradient of one logit with respect to the input, weights frozen. A
convolutional network (``--model resnet50``) has its own list: what a gradient gives, and guided backpropagation.

``--identity`` times what the identity of a model costs instead, over the forward of one image: every call of
``explain`` notes what the model is, and what is stored reads every byte of its weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import timm
import torch

import vitreous as vt
from vitreous.methods import compute_attributions, get_method
from vitreous.tracing import Context, Target

SHARED = "raw_attention, rollout, generic, attcam, gradient, ixg, gradcam, hirescam, plus(ixg), skipplus(ixg)"
SINGLE = ("generic", "ixg", "gradcam", "hirescam", "attcam", "rollout", "decompx", "skipplus(decompx)", "saliency")
LIMITS = {"generic": 1.3, "ixg": 1.3, "gradcam": 1.3, "decompx": 1.3, "compare of ten": 1.7}
CNN = ("saliency", "input_x_gradient", "gradcam", "gradcam_pp", "hirescam", "layercam", "guided_backprop")


def forward_and_gradient(model: torch.nn.Module, images: torch.Tensor, fused: bool = True) -> None:
    """Forward and input gradient of the predicted logit, as anyone would write it."""
    blocks = getattr(model, "blocks", ()) if not fused else ()
    for block in blocks:
        block.attn.fused_attn = False
    images = images.detach().requires_grad_()
    logits = model(images)
    torch.autograd.grad(logits.max(dim=1).values.sum(), images)
    for block in blocks:
        block.attn.fused_attn = True


def explain(model: vt.VisionModel, images: torch.Tensor, methods: list[str]) -> None:
    """Several methods over one context, as ``compare`` runs them."""
    context = Context(model, images, Target.of(model, len(images)), batch=len(images))
    compute_attributions(context, [get_method(method) for method in methods])


def _works(model: vt.VisionModel, images: torch.Tensor) -> dict[str, Callable[[], None]]:
    """What to time, by name; the reference first."""
    if not model.has_residual_stream:
        names = [name for name in CNN if model.is_relu_only or get_method(name).models != "ReLU"]
        single = {name: partial(explain, model, images, [name]) for name in names}
        shared = partial(explain, model, images, names)
        return {
            "reference": partial(forward_and_gradient, model.module, images),
            **single,
            f"compare of {len(names)}": shared,
        }
    return {
        "reference, explicit attention": partial(forward_and_gradient, model.module, images, False),
        "reference, fused attention": partial(forward_and_gradient, model.module, images),
        **{name: partial(explain, model, images, [name]) for name in SINGLE},
        "compare of ten": partial(explain, model, images, SHARED.replace("), ", ")|").replace(", ", "|").split("|")),
    }


def _identities(model: vt.VisionModel, image: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What the identity of a model costs; the reference first."""

    def forward() -> None:
        with torch.no_grad():
            model.module(image)

    return {
        "forward of one image": forward,
        "noted, as for each explain": model.snapshot,
        "every byte, as for each batch stored": lambda: model.identity,
    }


def timed(work: Callable[[], object], device: str, clock: Callable[[], float]) -> float:
    start = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--busy", action="store_true", help="count the processor's time, where others use it too")
    parser.add_argument("--identity", action="store_true", help="time what the identity of the model costs")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = timm.create_model(options.model, pretrained=False).eval()
    model = model.to(options.device, getattr(torch, options.dtype)).requires_grad_(False)
    vision_model = vt.wrap(model)
    images = torch.randn(options.batch, 3, *vision_model.preprocess.size).to(vision_model.device, vision_model.dtype)

    clock = time.process_time if options.busy else time.perf_counter
    if options.identity:
        seconds = timed(lambda: vision_model.identity, options.device, clock)
        print(f"the first identity in a process: {seconds * 1000:.1f} ms")
    works: dict[str, Callable[[], object]] = {**(_identities if options.identity else _works)(vision_model, images)}
    result, limits = next(iter(works)), LIMITS if vision_model.has_residual_stream else dict.fromkeys(CNN, 1.3)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # warm up
    for _ in range(options.rounds):
        for name, work in works.items():
            seconds[name].append(timed(work, options.device, clock))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    threads = torch.get_num_threads()
    print(f"{options.model}, batch {options.batch}, {options.dtype} on {options.device}, {threads} threads")
    for name, median in medians.items():
        limit = f"  (at most {limits[name]})" if name in limits else ""
        print(f"{name:36s} {median * 1000:9.1f} ms {median / medians[result]:6.2f} x{limit}")
    if vision_model.has_residual_stream and not options.identity:
        extra = medians["skipplus(decompx)"] / medians["decompx"] - 1
        print(f"skipplus(decompx) over decompx: {extra:+.1%}  (at most +10 %)")
    if options.out:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": None}, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
