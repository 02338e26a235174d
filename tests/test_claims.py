"""What the list of methods claims: how many there are, and which models each is for."""

from __future__ import annotations

import contextlib
import warnings

import pytest

import vitreous as vt
from every import EVERY
from families import images
from test_contract import SHORT
from vitreous.errors import ModelError
from vitreous.methods.registry import Info

WINDOWED = ["swin", *sorted(name for name in EVERY if "swin" in name and name != "swin")]


def spelling(info: Info) -> str:
    bases = ["generic", "ixg"][: info.bases]
    return SHORT.get(info.name) or (f"{info.name}({', '.join(bases)})" if bases else info.name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "swin" else pytest.mark.slow) for n in WINDOWED])
@pytest.mark.parametrize("info", vt.methods(), ids=lambda info: info.name)
def test_a_method_runs_inside_windows_if_and_only_if_it_is_for_all_models(info: Info, name: str) -> None:
    if info.refuses:
        assert info.models_text == "none"
        return
    view = vt.view(EVERY[name]())
    assert view.attends == "windows"
    assert info.models in ("all", "not Swin")
    refused = pytest.raises(ModelError, match=r"inside windows|leaves tokens out")
    with warnings.catch_warnings(), refused if info.models == "not Swin" else contextlib.nullcontext():
        warnings.simplefilter("ignore", vt.VitreousWarning)
        vt.method(spelling(info)).attribute(view, images(view, 1), target=1)


def test_at_least_sixty_distinct_methods() -> None:
    """Combinators, yardsticks and names that are only refused do not count, nor do two names of one class."""
    kinds = {
        info.make
        for info in vt.methods()
        if not (info.refuses or info.combines or info.family in ("combinator", "yardstick"))
    }
    assert len(kinds) >= 60


def test_combinators_are_for_the_models_of_their_base() -> None:
    told = {info.name: info.models_text for info in vt.methods()}
    assert {told[name] for name in ("plus", "smooth", "consensus", "var")} == {"as its base"}
    assert (told["refine"], told["decompx"], told["atman"]) == ("not Swin", "all", "not Swin")
