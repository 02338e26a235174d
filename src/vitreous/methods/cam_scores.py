"""Class activation maps without gradients: channels weighted by what the model says when one is shown or removed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import SpellingError
from vitreous.methods.base import Answer
from vitreous.methods.cam import FeatureMap
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Session, Trace, whole
from vitreous.passes.replace import logits_with

__all__ = ["AblationCAM", "ScoreCAM"]


@dataclass(frozen=True)
class ScoredCAM(FeatureMap):
    """``sum_k w_k F_k`` with one weight per channel, each from a forward of its own."""

    def forwards(self, view: View) -> float:
        return 1 + view.width

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (Pass((self.keep(view, whole),)),)

    def features(self, trace: Trace) -> Tensor:
        """Return the channels ``[B, C, h, w]`` of the patches."""
        tokens = at_least_float32(trace[self.keep(trace.view, whole)][0]).transpose(1, 2)
        maps = self.lay_out(trace, tokens.flatten(0, 1))
        return maps.reshape(*tokens.shape[:2], *maps.shape[1:])


@register("scorecam", family="CAM", papers=("wang2020scorecam",), cost=(768, 0), cost_note="C forwards")
@dataclass(frozen=True)
class ScoreCAM(ScoredCAM):
    """Channels weighted by the score of the image seen through each of them.

    ``w = softmax_k s(x * u(F_k))``, map ``sum_k w_k F_k``; u enlarges to the image (bilinear, corners aligned), then
    min-max with 1e-8. As in released code no baseline is subtracted; the paper has the increase of confidence.
    On the tokens of a sub-network (``plus``) the masks scale the patches' tokens. ``channels=n`` takes only the n
    channels that vary most over the patches: faster, and not in the paper.
    Cost: one forward per channel and one more.
    """

    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels is not None and self.channels < 1:
            raise SpellingError(f"channels={self.channels} must be at least 1")

    def forwards(self, view: View) -> float:
        return 1 + min(view.width, self.channels or view.width)

    def compute(self, session: Session) -> Answer:
        features = self.features(session.trace(self.only_pass(session.view)))
        if self.channels is not None and self.channels < features.shape[1]:
            best = features.flatten(2).std(dim=2).topk(self.channels).indices
            features = features[torch.arange(len(best), device=best.device)[:, None], best]
        at_once = max(1, session.batch // len(features))
        scores = torch.cat([self._scores(session, part) for part in torch.split(features, at_once, 1)], dim=1)
        return Answer(torch.einsum("bk,bkhw->bhw", scores.softmax(dim=1).to(features), features), {})

    def _scores(self, session: Session, features: Tensor) -> Tensor:
        """Return the scores ``[B, k]`` of the images behind these masks."""
        inputs = at_least_float32(session.inputs)
        size = session.inputs.shape[-2:] if inputs.ndim == 4 else session.view.grid(session.inputs)
        masks = F.interpolate(features, size=size, mode="bilinear", align_corners=True)
        low, high = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
        masks = (masks - low) / (high - low + 1e-8)
        if inputs.ndim == 4:
            seen = (inputs.unsqueeze(1) * masks.unsqueeze(2)).flatten(0, 1)
        else:
            factor = F.pad(masks.flatten(2), (session.view.prefix, 0), value=1.0)
            seen = (inputs.unsqueeze(1) * factor.unsqueeze(3)).flatten(0, 1)
        fork = session.fork(seen, repeat=features.shape[1])
        return fork.target.score(fork.logits).reshape(len(features), -1)


@register("ablationcam", family="CAM", papers=("desai2020ablationcam",), cost=(768, 0), cost_note="C forwards")
@dataclass(frozen=True)
class AblationCAM(ScoredCAM):
    """Channels weighted by how much the score falls without them.

    ``w_k = (s - s_k) / s``, map ``sum_k w_k F_k``. The paper sets channel k to zero. Here, as in released code, that is
    so only if the smallest feature of the image is exactly zero; otherwise, always after a LayerNorm, all tokens get
    that minimum less 1e7 (less 100 in float16, which holds no more). Such a number drowns everything else in the
    block, so s_k hardly depends on the image. Dividing by s turns the map where s is negative, and magnifies rounding
    where it is near zero. Layer term: the same at the block's input. Cost: one forward per channel, from the block on,
    and one whole one.
    """

    def at_layer(self, view: View, layer: int) -> AblationCAM:
        return replace(self, layer=layer, site="input")

    def asks(self, view: View) -> tuple[Pass, ...]:
        keep = self.keep(view, whole)
        return (Pass((keep, Keep("input", whole, keep.layers))),)

    def compute(self, session: Session) -> Answer:
        trace = session.trace(self.only_pass(session.view))
        features = self.features(trace)
        score = session.target.score(trace.logits).unsqueeze(1)
        weights = (score - self._scores(session, trace, features.shape[1])) / score
        return Answer(torch.einsum("bk,bkhw->bhw", weights.to(features), features), {})

    def _scores(self, session: Session, trace: Trace, channels: int) -> Tensor:
        """Return the scores ``[B, C]`` without each channel; the blocks below are not run again."""
        keep, below = self.only_pass(session.view).keeps
        (tokens,), (layer,), target = trace[below], keep.layers, session.target.repeat(channels)

        def part(start: int, stop: int) -> Tensor:
            rows = torch.arange(start, stop, device=tokens.device)
            without = Without(rows % channels)
            logits = logits_with(session.view, tokens[rows // channels], layer, keep.site, without)
            if session.tick is not None:
                session.tick(stop - start)
            return target.part(start, stop).score(logits)

        scores = session.inner.run(part, len(tokens) * channels)
        return torch.cat(scores).reshape(len(tokens), channels)


@dataclass(frozen=True, eq=False)
class Without:
    """Remove one channel of each image from a value ``[B, ..., C]``."""

    channels: Tensor

    def __call__(self, value: Tensor) -> Tensor:
        low = value.flatten(1).amin(dim=1)
        below = 1e7 if torch.finfo(value.dtype).max > 1e15 else 100.0
        instead = torch.where(low == 0, low, low - below).reshape(-1, *[1] * (value.ndim - 1))
        gone = F.one_hot(self.channels, value.shape[-1]).bool()
        return torch.where(gone.reshape(len(gone), *[1] * (value.ndim - 2), -1), instead, value)
