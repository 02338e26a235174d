"""The ladder: which method to take for how much effort, as a spelling."""

from __future__ import annotations

import math
import warnings
from weakref import WeakKeyDictionary

import torch
from torch import nn

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.methods.base import Method
from vitreous.methods.registry import get_method
from vitreous.models import Snapshot, VisionModel, wrap
from vitreous.registry.defaults import effort_spec
from vitreous.tracing.statistics_collect import seen_scenes

__all__ = ["recommended_method", "resolve_method"]

_SCENES = 8
_APART = 0.05  # of log-probabilities, at most
_agrees: dict[tuple[str, tuple[int, int]], bool] = {}
"""By the digest of a model and the size of its inputs."""
_walked: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def recommended_method(step: str = "quick", model: VisionModel | nn.Module | None = None) -> str:
    """Return the spelling of a step of the ladder: ``"quick"``, ``"careful"`` or ``"best"``.

    With a model, the one for that model: where attention is windowed, tokens cannot be left out, or there are none, the
    step has a substitute. On a GPU, samples run in float16 where the model's log-probabilities of eight rendered scenes
    agree with its own precision's.
    """
    usual = effort_spec(step)
    if model is None:
        return get_method(usual).spec
    vision_model = wrap(model)
    windows = vision_model.attention != "global"
    half = step != "quick" and _half_agrees(vision_model)
    walks = vision_model.has_residual_stream or _walks(vision_model)
    return get_method(
        effort_spec(step, windows, vision_model.can_drop_tokens, half, vision_model.has_residual_stream, walks)
    ).spec


def resolve_method(method: str | Method | None, effort: str | None, model: VisionModel) -> Method:
    """Return the method that is named, or else the one for some effort."""
    if method is not None and effort is not None:
        raise VitreousError(f"give a method or an effort, not both: {method} and {effort}")
    return get_method(recommended_method(effort or "quick", model) if method is None else method)


def _walks(model: VisionModel) -> bool:
    """Say whether relevance has a rule for all that a convolutional network does; tried once, on a blank image."""
    if model.module not in _walked:
        blank = torch.zeros(1, len(model.preprocess.mean), *model.preprocess.size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VitreousWarning)
                get_method("lrp@epsilon_plus").attribute(model, blank)
            _walked[model.module] = True
        except Exception:  # what has no rule can fail anywhere; a broken network fails again, and aloud
            _walked[model.module] = False
    return _walked[model.module]


def _half_agrees(model: VisionModel) -> bool:
    """Say whether float16 may stand in for float32 on a GPU; tried once for the weights of a model."""
    if model.device.type != "cuda" or model.dtype != torch.float32 or len(model.preprocess.mean) != 3:
        return False
    key = (str(Snapshot(model).recent), model.preprocess.size)
    if key not in _agrees:
        inputs = model.cast(seen_scenes(model, model.preprocess.size, 0, _SCENES))
        exact, seen = model.logits(inputs), model.shared_copy()
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            rounded = seen.forward_head(seen.forward_blocks(seen.embed(inputs)))
        exact, rounded = (logits.double().log_softmax(dim=1) for logits in (exact, rounded))
        best = exact.argmax(dim=1, keepdim=True)
        apart = float((exact - rounded).gather(1, best).abs().max())
        _agrees[key] = math.isfinite(apart) and apart <= _APART
    return _agrees[key]
