"""Refine: samples of the tokens correct a cheap map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, ModelError, SpellingError
from vitreous.methods.base import Answer, Method, computed, resized
from vitreous.methods.ofbase import OfBase
from vitreous.methods.perturbation.sets import FILLS, cell_of, filling
from vitreous.methods.registry import register
from vitreous.methods.subsets import refuse_whole_grids, scored, scored_rows, with_places
from vitreous.models import View
from vitreous.passes import VALUES, Keep, Pass, Session, whole
from vitreous.passes.memory import budget_bytes, in_parts
from vitreous.words import check_choice

__all__ = ["Refine", "Regression", "regress"]

_WEAKEST = 10  # powers of 2 from which on a ridge leaves nothing of the correction
_LEVELS = 8  # different shares of kept tokens, where they are spread


@register(
    "refine",
    family="combinator",
    builds_on=("ribeiro2016why",),
    cost=(513, 0),
    cost_note="base + masks forwards of part of the tokens",
)
@dataclass(frozen=True)
class Refine(OfBase):
    """A base map corrected by a regression of scores on random token subsets.

    ``masks`` subsets are drawn for every image, and the model sees these patches and the prefix tokens only, picked
    after the position embedding. A model that cannot leave tokens out sees the image with all other cells of its grid
    painted over: with their ``own`` mean colour, ``zero`` in normalised space, the ``mean`` colour of the image or a
    ``blur`` of it (``fill``). ``drop`` asks for one or the other; ``none`` is what the model can.

    With Z the centred indicators ``[masks, n]`` and y the centred scores, the map is ``a m + d``: m the centred base
    map, ``a`` its best multiple (least squares of y on Z m; 0 for a map without variance), and ``d = argmin |y - a Z m
    - Z d|² + λ |d|²`` what the prior leaves unexplained, ``λ = ridge tr(Z'Z) / n``; ``ridge=none`` takes
    the one of generalised cross-validation, image by image.
    ``doubt`` takes back what may be chance: of ``d_j`` stays ``max(0, 1 - doubt (e_j / d_j)²)``, with ``e_j`` its
    standard error. So ``refine(constant)`` is a plain ridge regression. Subsets come in pairs, a set and its
    complement, unless ``pairs`` is off; ``ratio`` is the share that is kept (its pair has ``1 - ratio``), spread over
    eight levels up to ``spread`` to either side. ``score``: ``prob``, ``logit`` or ``logprob`` of the class; ``half``
    scores in float16, on a GPU. Equal subsets are scored once. Extras: ``r2``, how well each half of the samples
    predicts the other; ``halves``, the map of each; ``error``, the standard error of every token; ``prior``, the share
    of the prediction that is the prior's. Cost: the base, and per mask a forward of ``ratio`` times the length, or a
    whole one where cells are painted over. Our own; it builds on LIME (Ribeiro et al., KDD 2016), which fits a ridge
    regression to random subsets without a prior.
    """

    base: Method
    masks: int = 1024
    ratio: float = 0.5
    spread: float = 0.0
    pairs: bool = True
    ridge: float | None = 1.0
    doubt: float = 0.0
    score: str = "prob"
    half: bool = False
    drop: bool | None = None
    fill: str = "own"

    def __post_init__(self) -> None:
        check_choice("score", self.score, VALUES)
        check_choice("fill", self.fill, FILLS)
        if self.masks < 8 or self.masks % 4:
            raise SpellingError(f"masks={self.masks} must be at least 8, and a multiple of 4")
        if not 0 < self.ratio < 1 or not 0 <= self.spread < min(self.ratio, 1 - self.ratio):
            raise SpellingError(f"ratio={self.ratio}, spread={self.spread} must leave shares between 0 and 1")
        if self.ridge is not None and not self.ridge > 0:
            raise SpellingError(f"ridge={self.ridge} must be above 0; none chooses it for every image")
        if not 0 <= self.doubt < math.inf:
            raise SpellingError(f"doubt={self.doubt} must be a number from 0 on")

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "token"

    @property
    def class_specific(self) -> bool:
        return True

    @property
    def own_value(self) -> str:
        return self.score

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return forwards + self.masks * (0.5 if self.pairs else self.ratio), backwards

    def forwards(self, view: View) -> float:
        return self.base.forwards(view) + self.masks

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (*((Pass((_TOKENS,)),) if self._drops(view) else ()), *self.base.asks(view))

    def _drops(self, view: View) -> bool:
        """Whether tokens leave the sequence."""
        if self.drop:
            refuse_whole_grids(f"{self.info.name}(drop=true)", view)
        return view.drops_tokens if self.drop is None else self.drop

    def compute(self, session: Session) -> Answer:
        shape = session.view.grid(session.inputs)
        prior = resized(computed(session, self.base).map, shape).flatten(1).double()
        if not torch.isfinite(prior).all():
            raise MapError(f"{self.base.spelling} gave values that are not finite, inside {self.info.name}")
        kept, scores = self._sampled(session, shape)
        solved = self._solve(session, kept, scores, prior)
        halves = [self._solve(session, kept[:, each::2], scores[:, each::2], prior) for each in (0, 1)]
        r2 = [_explained(kept[:, 1 - i :: 2], scores[:, 1 - i :: 2], half.map) for i, half in enumerate(halves)]
        extras = {
            "r2": torch.stack(r2, dim=1).mean(dim=1),
            "halves": torch.stack([half.map for half in halves], dim=1).view(-1, 2, *shape),
            "error": solved.error.view(-1, *shape),
            "prior": solved.prior,
        }
        like = torch.float64 if session.view.dtype == torch.float64 else torch.float32
        return Answer(solved.map.view(-1, *shape).to(like), {name: each.to(like) for name, each in extras.items()})

    def _sampled(self, session: Session, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return subsets and scores, drawn and run once for whatever is refined by the same ones."""
        how = ("drop",) if self._drops(session.view) else ("paint", self.fill)
        key = ("refine", self.masks, self.ratio, self.spread, self.pairs, self.score, self.half, *how)
        if key not in session.memo:
            kept = self._kept(session, shape[0] * shape[1])
            score = self._scores if how == ("drop",) else self._painted
            session.memo[key] = kept, score(session, kept, shape)
        sampled: tuple[Tensor, Tensor] = session.memo[key]
        return sampled

    def _kept(self, session: Session, patches: int) -> Tensor:
        """Return which patches every subset keeps, ``[B, masks, n]``; every other row is one half, with whole pairs."""
        if patches < 2:
            raise ModelError(f"{self.info.name}: an image of one patch has no subsets")
        rows = self.masks // 2 if self.pairs else self.masks
        ranks = session.draws("refine").bits(rows, patches).argsort(dim=2, stable=True).argsort(dim=2)
        levels = torch.arange(rows, device=ranks.device) % _LEVELS
        shares = self.ratio + self.spread * (2 * levels + 1 - _LEVELS) / _LEVELS
        counts = (shares * patches).round().clamp(1, patches - 1)
        first = ranks < counts[None, :, None]
        if not self.pairs:
            return first
        both = torch.stack([first[:, 0::2], first[:, 1::2], ~first[:, 0::2], ~first[:, 1::2]], dim=2)
        return both.flatten(1, 2)

    def _painted(self, session: Session, kept: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return the score of every image behind its subsets ``[B, masks]``; equal ones are run once."""
        view, inputs, filled = session.view, session.inputs, filling(session, self.info.name, self.fill)
        images, subsets, back = with_places(kept.long())
        if inputs.ndim == 3:
            shown = F.pad(subsets.bool(), (view.prefix, 0), value=True)
            places = torch.arange(shown.shape[1], device=shown.device)[:, None].expand(-1, inputs.shape[2])
        else:
            shown, wide = subsets.bool(), shape[1]
            rows, columns = (cell_of(*each).to(shown.device) for each in zip(inputs.shape[2:], shape, strict=True))
            places = (rows[:, None] * wide + columns).expand(inputs.shape[1], -1, -1)

        def logits(start: int, stop: int) -> Tensor:
            seen, of = shown[start:stop][:, places], images[start:stop]
            return view.finish(view.run(view.embed(torch.where(seen, inputs[of], filled[of]))))

        found = scored_rows(session, self.info.name, logits, images, self.score, self.half)
        return found.double()[back].view(len(kept), -1)

    def _scores(self, session: Session, kept: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return the score of every subset ``[B, masks]``; equal ones are run once, those of one length together."""
        (tokens,) = session.trace(Pass((_TOKENS,)))[_TOKENS]
        scores = kept.new_zeros(kept.shape[:2], dtype=torch.float64)
        counts = kept[0].sum(dim=1)  # the same for all images
        for count in sorted(set(counts.tolist())):
            mine = (counts == count).nonzero().flatten()
            chosen = kept[:, mine].to(torch.uint8).sort(dim=2, descending=True, stable=True).indices[:, :, :count]
            images, subsets, back = with_places(chosen)
            found = scored(session, self.info.name, tokens, images, subsets, self.score, self.half)
            scores[:, mine] = found.double()[back].view(len(kept), -1)
        return scores

    def _solve(self, session: Session, kept: Tensor, scores: Tensor, prior: Tensor) -> Regression:
        """Regress image by image, as many at once as memory allows."""
        bytes_each = 8 * kept.shape[2] * (4 * kept.shape[1] + 4 * kept.shape[2])
        at_once = max(1, int(budget_bytes(session.inputs.device, session.memory) / bytes_each))

        def part(start: int, stop: int) -> Regression:
            cut = slice(start, stop)
            return regress(kept[cut].double(), scores[cut], prior[cut], self.ridge, self.doubt)

        return Regression(*(torch.cat(each) for each in zip(*in_parts(part, len(kept), at_once), strict=True)))


class Regression(NamedTuple):
    """The map ``[B, n]``, its standard error ``[B, n]``, and which share ``[B]`` of the prediction is the prior's."""

    map: Tensor
    error: Tensor
    prior: Tensor


def regress(kept: Tensor, scores: Tensor, prior: Tensor, ridge: float | None, doubt: float = 0.0) -> Regression:
    """Regress scores ``[B, S]`` on indicators ``[B, S, n]`` around the best multiple of a prior ``[B, n]``.

    Without a ridge, each image gets the one that generalised cross-validation prefers. What is left of a correction
    with a standard error is ``max(0, 1 - doubt (error / correction)²)`` of it.
    """
    design = kept - kept.mean(dim=1, keepdim=True)
    response = scores - scores.mean(dim=1, keepdim=True)
    centred = prior - prior.mean(dim=1, keepdim=True)
    guess = (design @ centred[:, :, None])[:, :, 0]
    size = (guess**2).sum(dim=1)
    varies = ((centred**2).sum(dim=1) > 1e-20 * (prior**2).sum(dim=1)) & (size > 0)  # more than rounding
    multiple = torch.where(varies, (guess * response).sum(dim=1) / torch.where(varies, size, 1), 0)
    told = multiple[:, None] * guess
    gram = design.mT @ design
    moment = (design.mT @ (response - told)[:, :, None])[:, :, 0]
    unit = gram.diagonal(dim1=1, dim2=2).mean(dim=1)
    strength = ridge * unit if ridge is not None else _validated(gram, moment, response - told, unit)
    matrix = gram + torch.diag_embed(strength[:, None].expand(-1, gram.shape[1]))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    rest = (inverse @ moment[:, :, None])[:, :, 0]
    corrected = (design @ rest[:, :, None])[:, :, 0]
    spread = inverse @ gram
    freedom = (kept.shape[1] - 1 - spread.diagonal(dim1=1, dim2=2).sum(dim=1)).clamp(min=1)
    noise = ((response - told - corrected) ** 2).sum(dim=1) / freedom
    error = (noise[:, None] * (spread @ inverse).diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt()
    rest = rest * (1 - doubt * error**2 / torch.where(rest != 0, rest**2, 1)).clamp(min=0)
    corrected = (design @ rest[:, :, None])[:, :, 0]
    parts = (told**2).sum(dim=1), (corrected**2).sum(dim=1)
    share = parts[0] / (parts[0] + parts[1]).clamp(min=torch.finfo(torch.float64).tiny)
    return Regression(multiple[:, None] * centred + rest, error, share)


def _validated(gram: Tensor, moment: Tensor, response: Tensor, unit: Tensor) -> Tensor:
    """Return the ridge ``[B]`` with the least ``residual / freedom²`` among powers of 2 times a unit ``[B]``."""
    sizes, axes = torch.linalg.eigh(gram)
    sizes = sizes.clamp(min=0)[:, None]
    turned = (axes.mT @ moment[:, :, None]).mT
    strengths = unit[:, None] * 2.0 ** torch.arange(-1, _WEAKEST, device=gram.device)
    damped = sizes + strengths[:, :, None]
    fitted = turned / damped
    left = (response**2).sum(dim=1, keepdim=True) - 2 * (fitted * turned).sum(dim=2) + (sizes * fitted**2).sum(dim=2)
    freedom = response.shape[1] - 1 - (sizes / damped).sum(dim=2)
    best = (left / freedom**2).argmin(dim=1, keepdim=True)
    return strengths.gather(1, best)[:, 0]


def _explained(kept: Tensor, scores: Tensor, fitted: Tensor) -> Tensor:
    """Return the share of the variance of the scores that a map predicts, ``[B]``; below 0 if it is worse than none."""
    prediction = (kept.double() @ fitted[:, :, None])[:, :, 0]
    prediction = prediction - prediction.mean(dim=1, keepdim=True)
    response = scores - scores.mean(dim=1, keepdim=True)
    total = (response**2).sum(dim=1)
    left = ((response - prediction) ** 2).sum(dim=1)
    return torch.where(total > 0, 1 - left / torch.where(total > 0, total, 1), 0)


_TOKENS = Keep("input", whole, (0,))
