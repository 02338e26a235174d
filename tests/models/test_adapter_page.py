"""A new family is one file: the page about adapters, written into one, is found by name and takes part."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import vitreous as vt
from vitreous.models import registry


def test_a_new_family_is_one_file(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (root / "docs" / "adapters.md").read_text()
    sections = re.split(r"^## ", page, flags=re.MULTILINE)
    blocks = [
        re.search(r"```python\n(.*?)```", section, re.DOTALL)
        for section in sections
        if section.startswith(("The model\n", "Its VisionModel\n", "The adapter\n"))
    ]
    (tmp_path / "hand.py").write_text("import vitreous as vt\n" + "\n".join(block[1] for block in blocks if block))
    spec = importlib.util.spec_from_file_location("hand", tmp_path / "hand.py")
    assert spec is not None
    assert spec.loader is not None
    hand = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hand", hand)
    spec.loader.exec_module(hand)
    monkeypatch.setattr(registry, "_registered", list(registry._registered))
    vt.register_adapter(hand.ADAPTER)
    try:
        assert "hand/vit" in [info.name for info in vt.list_models()]
        model = vt.load("hand/vit", depth=2, class_names=["ant", "bee", "cat", "dog", "eel"])
        assert (model.depth, model.label(1), vt.wrap(hand.HandViT()).name) == (2, "bee", "hand/vit")
        assert model.operation_counts(0) == {"attention": 1, "norm": 2, "activation": 1}
        assert model.operation_counts(None)["norm"] == 1
        assert vt.diagnose(model).healthy
        maps = vt.get_method("decompx").attribute(model, torch.randn(2, 3, 32, 32), target=1)
        assert maps.shape == (2, 4, 4)
    finally:
        registry.adapters.cache_clear()
