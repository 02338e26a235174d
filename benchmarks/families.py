"""What explaining costs on every family: time over the same model's own forward + input gradient.

Run ``python benchmarks/families.py``. Models have random weights; all times come from one run, works interleaved round
by round; the figures are ratios of medians. The reference is the unmodified model, with its own attention.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from overhead import explain, timed

import vitreous as vt

LIMIT = 1.4
TIMM = [
    "vit_small_patch16_224",
    "deit_small_distilled_patch16_224",
    "deit3_small_patch16_224",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_base_patch16_siglip_224",
    "beit_base_patch16_224",
    "eva02_small_patch14_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
]
TORCHVISION = ["vit_b_32", "swin_t", "swin_v2_t"]


def hugging_face() -> dict[str, Callable[[], torch.nn.Module]]:
    """Small models from configurations alone."""
    import transformers as hf

    size = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "num_labels": 1000}
    return {
        "hf ViT-S/16": lambda: hf.ViTForImageClassification(hf.ViTConfig(**size)),
        "hf Dinov2-S/14": lambda: hf.Dinov2ForImageClassification(
            hf.Dinov2Config(hidden_size=384, num_attention_heads=6, num_labels=1000, image_size=224)
        ),
        "hf Swin-T": lambda: hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000)),
    }


def forward_and_gradient(model: vt.VisionModel, images: torch.Tensor) -> None:
    """Forward and input gradient of the predicted logit, by the model itself."""
    images = images.detach().requires_grad_()
    logits = model.reference_forward(images)
    torch.autograd.grad(logits.max(dim=1).values.sum(), images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    makers: dict[str, Callable[[], torch.nn.Module | vt.VisionModel]] = {
        f"{family}/{name}": partial(vt.load, f"{family}/{name}", pretrained=False, num_classes=1000)
        for family, names in (("timm", TIMM), ("torchvision", TORCHVISION))
        for name in names
    } | hugging_face()
    methods = ["ixg", "gradcam", "decompx"]
    print(f"batch {options.batch}, float32 on {options.device}, {torch.get_num_threads()} threads; at most {LIMIT}")
    print(f"{'model':46s} {'reference':>9s} " + " ".join(f"{name:>8s}" for name in methods))
    for name, make in makers.items():
        model = vt.wrap(make())
        model.module.eval().requires_grad_(False).to(options.device)
        images = torch.randn(options.batch, 3, *model.preprocess.size, device=options.device)
        works = {"reference": partial(forward_and_gradient, model, images)}
        works |= {method: partial(explain, model, images, [method]) for method in methods}
        seconds: dict[str, list[float]] = {work: [] for work in works}
        for work in works.values():
            work()
        for _ in range(options.rounds):
            for element, work in works.items():
                seconds[element].append(timed(work, options.device, time.perf_counter))
        medians = {item: statistics.median(times) for item, times in seconds.items()}
        ratios = " ".join(f"{medians[method] / medians['reference']:8.2f}" for method in methods)
        print(f"{name:46s} {medians['reference'] * 1000:6.0f} ms {ratios}")


if __name__ == "__main__":
    main()
