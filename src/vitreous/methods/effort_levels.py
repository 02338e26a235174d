"""Effort levels: which method to take for how much effort, as a spec."""

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

_SCENES = 8
_TOLERANCE = 0.05  # of log-probabilities
_half_agrees: dict[tuple[str, tuple[int, int]], bool] = {}
"""By the digest of a model and the size of its inputs."""
_has_rules: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def recommended_method(effort: str = "quick", model: VisionModel | nn.Module | None = None) -> str:
    """Return the spec of the method that is recommended for an effort level.

    Parameters
    ----------
    effort : {"quick", "careful", "best"}, default "quick"
        How much an explanation may cost.
    model : VisionModel or Module, optional
        The model to be explained: where its attention is windowed, tokens cannot be left out, or there are none, the
        level has a substitute. On a GPU, samples run in float16 where the model's log-probabilities of eight rendered
        scenes agree with its own precision's.

    Returns
    -------
    str
        The spec, for ``get_method`` and ``explain(method=...)``.

    Examples
    --------
    >>> vt.recommended_method("quick") == vt.recommended_method("quick", model)
    True
    """
    if model is None:
        return get_method(effort_spec(effort)).spec
    model = wrap(model)
    half = effort != "quick" and _agrees_in_half(model)
    has_stream = model.has_residual_stream
    has_rules = has_stream or _relevance_has_rules(model)
    windowed = model.attention != "global"
    return get_method(effort_spec(effort, windowed, model.can_drop_tokens, half, has_stream, has_rules)).spec


def resolve_method(method: str | Method | None, effort: str | None, model: VisionModel) -> Method:
    """Return the method that is named, or else the one for some effort."""
    if method is not None and effort is not None:
        raise VitreousError(f"give a method or an effort, not both: {method} and {effort}")
    return get_method(
        method if method is not None else recommended_method("quick" if effort is None else effort, model)
    )


def _relevance_has_rules(model: VisionModel) -> bool:
    """Whether relevance has a rule for all that a convolutional network does; tried once, on a blank image."""
    if model.module not in _has_rules:
        blank = torch.zeros(1, len(model.preprocess.mean), *model.preprocess.size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VitreousWarning)
                get_method("lrp@epsilon_plus").attribute(model, blank)
            _has_rules[model.module] = True
        except Exception:  # what has no rule can fail anywhere; a broken network fails again, and aloud
            _has_rules[model.module] = False
    return _has_rules[model.module]


def _agrees_in_half(model: VisionModel) -> bool:
    """Whether float16 may stand in for float32 on a GPU; tried once for the weights of a model."""
    if model.device.type != "cuda" or model.dtype != torch.float32 or len(model.preprocess.mean) != 3:
        return False
    key = (str(Snapshot(model).recent), model.preprocess.size)
    if key not in _half_agrees:
        inputs = model.cast(seen_scenes(model, model.preprocess.size, 0, _SCENES))
        exact, copy = model.logits(inputs), model.shared_copy()
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            rounded = copy.forward_head(copy.forward_blocks(copy.embed(inputs)))
        exact, rounded = (logits.double().log_softmax(dim=1) for logits in (exact, rounded))
        best = exact.argmax(dim=1, keepdim=True)
        error = float((exact - rounded).gather(1, best).abs().max())
        _half_agrees[key] = math.isfinite(error) and error <= _TOLERANCE
    return _half_agrees[key]
