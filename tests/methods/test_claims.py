"""What the list of methods claims: how many there are, and which models each is for."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest

import vitreous as vt
from contract import SHORT
from families import images
from families_cnn import RELU
from vitreous.errors import ModelError
from vitreous.methods.registry import KINDS_OF_MODELS, MethodInfo
from zoo import CNNS, EVERY

WINDOWED = ["swin", *sorted(name for name in EVERY if "swin" in name and name != "swin")]


def spelling(info: MethodInfo, bases: tuple[str, ...] = ("generic", "ixg")) -> str:
    made = f"{info.name}({', '.join(bases[: info.num_bases])})" if info.num_bases else info.name
    return (SHORT.get(info.name) or made).replace("(generic", f"({bases[0]}")


def short(names: list[str], usual: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in usual else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", short(WINDOWED, ("swin",)))
@pytest.mark.parametrize("info", vt.list_methods(), ids=lambda info: info.name)
def test_a_method_runs_inside_windows_if_and_only_if_it_says_so(info: MethodInfo, name: str) -> None:
    model = vt.wrap(EVERY[name]())
    assert model.attention == "windowed"
    _runs_or_refuses(info, model, ("all", "transformers"), r"inside windows|leaves tokens out|ReLUs only", "generic")


@pytest.mark.parametrize("name", short([*CNNS], ("resnet", "tv_convnext")))
@pytest.mark.parametrize("info", vt.list_methods(), ids=lambda info: info.name)
def test_a_method_runs_on_a_convolutional_network_if_and_only_if_it_says_so(info: MethodInfo, name: str) -> None:
    model = vt.wrap(CNNS[name]())
    assert (model.attention, model.has_residual_stream, model.is_relu_only) == ("none", False, name in RELU)
    fitting = ("all", "ReLU") if model.is_relu_only else ("all",)
    _runs_or_refuses(info, model, fitting, r"is for transformers|ReLUs only", "gradcam")


def _runs_or_refuses(info: MethodInfo, model: vt.VisionModel, fitting: tuple[str, ...], why: str, base: str) -> None:
    assert info.models in KINDS_OF_MODELS
    refused = contextlib.nullcontext() if info.models in fitting else pytest.raises(ModelError, match=why)
    with warnings.catch_warnings(), refused:
        warnings.simplefilter("ignore", vt.VitreousWarning)
        vt.get_method(spelling(info, (base, "ixg"))).attribute(model, images(model, 1), target=1)


def test_at_least_sixty_distinct_methods() -> None:
    """Combinators and yardsticks do not count, nor do two names of one class."""
    kinds = {
        info.factory
        for info in vt.list_methods()
        if not (info.is_combinator or info.family in ("combinator", "yardstick"))
    }
    assert len(kinds) >= 60


def test_combinators_are_for_the_models_of_their_base() -> None:
    told = {info.name: info.models_text for info in vt.list_methods()}
    assert {told[name] for name in ("smooth", "consensus", "var", "refine", "logprob")} == {"as its base"}
    assert {told[name] for name in ("plus", "decompx", "generic")} == {"transformers"}
    assert (told["gradcam"], told["atman"], told["guided_backprop"]) == ("all", "ViT", "ReLU")
