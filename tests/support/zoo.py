"""All families of all libraries that are installed: transformers, convolutional networks, and both."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
from torch import Tensor

import families
import families_cnn
import families_timm
import families_torchvision
import vitreous as vt

EVERY: dict[str, Callable[[], Any]] = {
    **families.FAMILIES,
    **families_timm.FAMILIES,
    **families_torchvision.FAMILIES,
}
if find_spec("transformers") is not None:
    import families_hf

    EVERY |= families_hf.FAMILIES

CNNS = families_cnn.FAMILIES
ALL = {**EVERY, **CNNS}
CLASS = 1
"""The class that is explained where any will do."""


@cache
def _double(family: str) -> vt.VisionModel:
    return vt.wrap(EVERY[family]().double())


def look_at(family: str, batch: int = 2) -> tuple[vt.VisionModel, Tensor]:
    """A model in double precision that tests share and leave alone, and some inputs.

    Skipped where its library is not installed.
    """
    if family not in EVERY:
        pytest.skip("its library is not installed")
    return _double(family), families.images(_double(family), batch)


def value_of(logits: Tensor, value: str = "logit") -> Tensor:
    """The explained number of each row of logits."""
    return {"prob": logits.softmax(1), "logit": logits, "logprob": logits.log_softmax(1)}[value][:, CLASS]
