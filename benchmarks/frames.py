"""How many function calls of Vitreous lie between a user's call and the user's model.

Run ``python benchmarks/frames.py``. One module of a small model notes the call stack whenever it runs. Of every way
that leads there the number of frames inside the package is counted, comprehensions left out, and the deepest one of
each call is compared with its limit; ``--all`` prints all of them. For *why* it is also counted how many contexts are
opened. The command exits with 1 where a limit is exceeded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitreous as vt
from vitreous.benchmark.executors import run as run_units
from vitreous.benchmark.protocol import read
from vitreous.benchmark.run import BenchmarkRun
from vitreous.tracing import Context

PACKAGE = str(Path(vt.__file__).parent)
LIMITS = {"explain": 7, "evaluate": 7, "why": 8, "benchmark unit": 10}
CONTEXTS = 3
Way = tuple[str, ...]
ways: Counter[Way] = Counter()


class Recorder(nn.Identity):
    """Passes everything on, and notes who called."""

    def forward(self, input: Tensor) -> Tensor:
        way, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
                way.append(f"{Path(code.co_filename).relative_to(PACKAGE).with_suffix('')}:{code.co_name}")
            frame = frame.f_back
        ways[tuple(reversed(way))] += 1
        return input


class SmallModels:
    """Offers one small vision transformer whose tokens pass a recorder, as ``frames/small``."""

    prefix = "frames"

    def accepts(self, module: nn.Module) -> bool:
        return False

    def wrap(self, module: nn.Module, **facts: Any) -> vt.VisionModel:
        raise NotImplementedError("it is a timm model")

    def load(self, name: str, **options: Any) -> nn.Module:
        torch.manual_seed(0)
        model = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5)
        model.norm_pre = Recorder()
        return model.eval()

    def models(self) -> list[Any]:
        return []


def calls(model: vt.VisionModel, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return what is traced, by name."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    photo = model.preprocess.to_image(images[0])
    photo.save(folder / "photo.png")
    protocol = folder / "protocol.toml"
    protocol.write_text(
        'schema = "vitreous.protocol/1"\ntitle = "Frames"\n\n[[models]]\nlabel = "small"\nname = "frames/small"\n\n'
        f'[data]\nsource = "folder"\npath = "{folder}"\n\n'
        '[evaluation]\nmetrics = ["insertion(steps=2)"]\ncontrols = false\n\n[methods]\nixg = "ixg"\n'
    )
    return {
        "explain": lambda: vt.explain(model, images, "ixg"),
        "evaluate": lambda: vt.evaluate(model, images, "ixg", "insertion(steps=2)", controls=False, n_bootstrap=1),
        "why": lambda: vt.why(model, photo, "ixg"),
        "benchmark unit": lambda: run(protocol, folder / "run"),
    }


def run(protocol: Path, out: Path) -> None:
    """Run a protocol of one model in this process."""
    bench = BenchmarkRun(read(protocol), out)
    bench.prepare()
    run_units(bench, workers=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="print every way, not the deepest one alone")
    options, exceeded = parser.parse_args(), False
    warnings.simplefilter("ignore", vt.VitreousWarning)
    with tempfile.TemporaryDirectory() as folder:
        vt.register_adapter(SmallModels())
        model = vt.load("frames/small")
        for name, call in calls(model, Path(folder)).items():
            ways.clear()
            with mock.patch.object(Context, "__init__", autospec=True, side_effect=Context.__init__) as opened:
                call()
            deepest = max(map(len, ways))
            exceeded |= deepest > LIMITS[name]
            text = f"{name}: {deepest} frames, at most {LIMITS[name]}"
            if name == "why":
                exceeded |= opened.call_count > CONTEXTS
                text += f"; {opened.call_count} contexts, at most {CONTEXTS}"
            print(text)
            for way, count in sorted(ways.items(), key=lambda item: -len(item[0])):
                if options.all or len(way) == deepest:
                    print(f"  {count:>4} x {len(way):>2}  {' > '.join(way)}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
