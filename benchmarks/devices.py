"""The same maps on a CPU and a GPU, in float32 and in half precision: how far apart are they?

Run ``python benchmarks/devices.py`` on a machine with a GPU. For every method: the largest difference relative to the
largest value between CPU float32 and GPU float32, and the cosine between GPU float32 and GPU bfloat16 and float16 maps.
"""

from __future__ import annotations

import warnings

import timm
import torch
from torch.nn.functional import cosine_similarity

import vitreous as vt


def main() -> None:
    warnings.simplefilter("ignore", vt.VitreousWarning)
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224", pretrained=False).eval()
    images = torch.randn(4, 3, 224, 224)
    specs = [f"{i.name}(generic)" if i.is_combinator else i.name for i in vt.list_methods()]
    specs += ["plus(ixg)", "skipplus(decompx)", "plus(saliency)"]
    maps: dict[tuple[str, str], torch.Tensor] = {}
    for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"), ("cuda", "float16")):
        model = model.to(device, getattr(torch, dtype))
        for spec in specs:
            result = vt.get_method(spec).attribute(model, images, target=3)
            maps[spec, f"{device} {dtype}"] = result.cpu().double().flatten(1)
        model = model.float()
    print(f"{'method':36s} {'GPU - CPU':>10s} {'cos bf16':>9s} {'cos fp16':>9s}")
    for spec in specs:
        reference = maps[spec, "cpu float32"]
        difference = (maps[spec, "cuda float32"] - reference).abs().max() / reference.abs().max()
        half = [
            cosine_similarity(maps[spec, "cuda float32"], maps[spec, f"cuda {dtype}"], dim=1).min()
            for dtype in ("bfloat16", "float16")
        ]
        print(f"{spec:36s} {difference:10.1e} {half[0]:9.4f} {half[1]:9.4f}")


if __name__ == "__main__":
    main()
