"""The benchmarks have every method, and their reference passes run as many inputs as the methods do."""

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


def transformer_methods() -> set[str]:
    """The methods of a transformer."""
    return {i.name for i in vt.list_methods() if not (i.is_combinator or i.family == "control" or i.models == "ReLU")}


def test_every_method_has_reference_passes_and_a_row() -> None:
    import faithful
    import reference_passes

    assert not reference_passes.missing()
    assert {*reference_passes.REFERENCE_PASSES, *reference_passes.TIMED_ALONE} == transformer_methods()
    rows = {vt.get_method(faithful.label(text)).info.name for texts in faithful.GROUPS.values() for text in texts}
    assert transformer_methods() - rows == {"attention_flow"}


@pytest.mark.parametrize("name", LONG.split())
def test_reference_passes_run_as_many_inputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that enter any block, there and in the method."""
    from faithful import smaller
    from methods import explain
    from reference_passes import REFERENCE_PASSES, PassConfig, ReferenceModel
    from timm.models.vision_transformer import Block

    model, images = vt.wrap(tiny()), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    method = smaller(vt.get_method(name if name not in ("coiba", "iba", "iba_star") else f"{name}(stats=own)"))
    seen: list[int] = []
    full = Block.forward

    def counting(self: Any, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        seen.append(len(x))
        return full(self, x, *args, **options)

    run: list[int] = []
    monkeypatch.setattr(Block, "forward", counting)
    explain(model, images[:1], method, 4)  # the first call verifies the model
    seen.clear()
    explain(model, images, method, 4, run.append)
    expected, reference = sum(seen), ReferenceModel(model)
    seen.clear()
    REFERENCE_PASSES[name].work(PassConfig(reference, images, method, 4, sum(run)))
    assert sum(seen) == expected
    assert all(block.attn.fused_attn for block in reference.model.module.blocks)


def test_written_out_attention_is_not_fused() -> None:
    from reference_passes import ReferenceModel, explicit_attention

    reference = ReferenceModel(vt.wrap(tiny()))
    blocks = reference.model.module.blocks
    with explicit_attention(reference.model, [1]):
        assert [block.attn.fused_attn for block in blocks] == [True, False, True]
    assert all(block.attn.fused_attn for block in blocks)


def test_the_table_is_sorted_by_the_mean_rank_and_controls_are_last() -> None:
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
