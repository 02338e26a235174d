"""How far a view may be from its model: rounding, and nothing else."""

from __future__ import annotations

import pytest
import torch

import vitreous as vt
from families import FAMILIES, images
from vitreous.models.shared_copy import gap, rounding


def test_a_class_that_is_shut_out_is_equal_to_itself() -> None:
    logits = torch.tensor([[1.0, -torch.inf, torch.nan]])
    assert gap(logits, logits.clone()) == (0.0, False)
    assert gap(logits, torch.tensor([[1.0, 0.0, torch.nan]]))[1]
    assert gap(torch.tensor([[1.0, torch.nan, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]))[1]


def test_a_model_that_shuts_out_a_class_is_explained() -> None:
    model = FAMILIES["vit"]()
    with torch.no_grad():
        model.head.bias[2] = -torch.inf
    result = vt.get_method("ixg").attribute(model, images(model, 1), target=1)
    assert torch.isfinite(result).all()


@pytest.mark.parametrize(
    ("dtype", "device", "short", "limit"),
    [
        (torch.float32, "cpu", True, 1e-4),
        (torch.float32, "cuda", False, 1e-4),
        (torch.float32, "cuda", True, 2e-3),
        (torch.float64, "cuda", True, 1e-4),
        (torch.float16, "cpu", False, 1e-2),
    ],
)
def test_what_counts_asrounding(dtype: torch.dtype, device: str, short: bool, limit: float) -> None:
    """A GPU whose convolutions may round to ten bits is believed that far, and no further."""
    with torch.backends.cudnn.flags(allow_tf32=short):
        assert rounding(dtype, device) == limit
