"""What a map is a map of: the value of the class that it explains, and whether its sign means anything."""

from __future__ import annotations

import pytest
import torch

import vitreous as vt
from families import FAMILIES, images


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("logprob(vtranm)", ("prob",)),
        ("smooth(logprob(vtranm), samples=2)", ("prob",)),
        ("logprob(vtranm(output=none))", ("logprob",)),
        ("logprob(consensus(ixg, vtranm))", ("logprob", "prob")),
        ("consensus(logprob(ixg), rollout)", ("logprob",)),
        ("consensus(rollout, raw_attention)", ("logit",)),
        ("smooth(plus(logprob(ixg)), samples=2)", ("logprob",)),
        ("var(smooth(logprob(ixg), samples=2))", ("logprob",)),
    ],
)
def test_values_of_nested_methods(spec: str, values: tuple[str, ...]) -> None:
    assert vt.get_method(spec).outputs("logit") == values


def test_a_value_of_its_own_is_what_is_computed() -> None:
    """Inside ``logprob`` too, a method that explains the probability explains the probability."""
    model = FAMILIES["vit"]()
    inputs = images(model, 2)
    inside, simple = (vt.get_method(name).attribute(model, inputs, 1) for name in ("logprob(vtranm)", "vtranm"))
    torch.testing.assert_close(inside, simple)
    other = vt.get_method("logprob(vtranm(output=none))").attribute(model, inputs, 1)
    assert not torch.allclose(other, simple)


@pytest.mark.parametrize(
    ("spec", "signed"),
    [
        ("ixg", True),
        ("plus(logprob(ixg))", True),
        ("eigencam", False),
        ("eigengradcam", False),
        ("smooth(eigengradcam, samples=2)", False),
        ("consensus(ixg, eigencam)", False),
        ("rollout", False),
        ("consensus(ixg, rollout)", True),
    ],
)
def test_whether_below_zero_means_against(spec: str, signed: bool) -> None:
    assert vt.get_method(spec).signed is signed
