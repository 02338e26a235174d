"""All families of all libraries that are installed: transformers, convolutional networks, and both."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import families
import families_cnn
import families_timm
import families_torchvision

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
