"""The benchmarks know every method, and their bare yardsticks run as many inputs as the methods do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import vitreous as vt

HERE = Path(__file__).parent.parent / "benchmarks"
LONG = (
    "tam bt_t bt_h iia integrated_gradients gradient_shap blur_ig guided_ig scorecam ablationcam rise occlusion lime "
    "hsic kernel_shap vit_cx atman tis coiba iba iba_star"
)
pytestmark = pytest.mark.skipif(not HERE.exists(), reason="the benchmarks are not shipped")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(HERE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).parent == HERE:
            del sys.modules[name]  # such short names are no one's to keep


def tiny() -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=24, num_heads=2, num_classes=5
    )
    return model.eval().requires_grad_(False)


def own() -> set[str]:
    """The methods of a transformer."""
    return {i.name for i in vt.list_methods() if not (i.is_combinator or i.family == "control" or i.models == "ReLU")}


def test_every_method_has_a_yardstick_and_a_row() -> None:
    import bare
    import faithful

    assert not bare.missing()
    assert {*bare.BARE, *bare.ELSEWHERE} == own()
    rows = {vt.get_method(faithful.label(text)).info.name for texts in faithful.GROUPS.values() for text in texts}
    assert own() - rows == {"attention_flow"}


@pytest.mark.parametrize("name", LONG.split())
def test_bare_passes_are_as_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that enter any block, there and in the method."""
    from bare import BARE, Job, Naked
    from faithful import smaller
    from methods import explain
    from timm.models.vision_transformer import Block

    model, images = vt.wrap(tiny()), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    options = smaller(vt.get_method(name if name not in ("coiba", "iba", "iba_star") else f"{name}(stats=own)"))
    seen: list[int] = []
    full = Block.forward

    def counting(self: Any, x: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        seen.append(len(x))
        return full(self, x, *rest, **more)

    run: list[int] = []
    monkeypatch.setattr(Block, "forward", counting)
    explain(model, images[:1], options, 4)  # the first time, the view is held against the model
    seen.clear()
    explain(model, images, options, 4, run.append)
    ours, naked = sum(seen), Naked(model)
    seen.clear()
    BARE[name].work(Job(naked, images, options, 4, sum(run)))
    assert sum(seen) == ours
    assert all(block.attn.fused_attn for block in naked.view.module.blocks)


def test_written_out_attention_is_not_fused() -> None:
    from bare import Naked, written

    naked = Naked(vt.wrap(tiny()))
    blocks = naked.view.module.blocks
    with written(naked.view, [1]):
        assert [block.attn.fused_attn for block in blocks] == [True, False, True]
    assert all(block.attn.fused_attn for block in blocks)


def test_the_table_is_sorted_by_the_mean_rank_and_yardsticks_are_last() -> None:
    import faithful

    def row(mean: float, images: int = 300) -> dict[str, Any]:
        score = {"mean": mean, "interval": [mean - 0.1, mean + 0.1]}
        scores = dict.fromkeys(faithful.COLUMNS, score)
        return {"images": images, "cost": "1 F", "seconds": 0.5, "scores": scores}

    one = {"a": row(0.1), "b": row(0.3), "c": row(0.2, 100), "random": row(0.9)}
    two = {"a": row(0.1), "b": row(0.2), "c": row(0.3, 100), "random": row(0.9), "d": row(0.0)}
    actual = {"deit": {"groups": {"x": {"rows": one}}}, "dinov2": {"groups": {"x": {"rows": two}}}}
    assert list(faithful.ranked(actual))[-2:] == ["d", "random"]
    assert list(faithful.ranked(actual))[2] == "a"
    text = faithful.markdown(json.loads(json.dumps(actual)))
    assert "| `c`, 100 images | 1 F | 0.200 [0.100, 0.300] |" in text
    assert "| `d` | 1 F | refused |" in text
