"""``why``: one picture, one answer. What the model says, where it saw it, and whether that can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn

from vitreous import __version__, disk, show
from vitreous.api import explain
from vitreous.errors import VitreousError
from vitreous.judge.check import check
from vitreous.methods import method as read
from vitreous.methods import to_grid
from vitreous.models import View, view
from vitreous.passes import TargetSpec, probabilities
from vitreous.results import Checkup, Explanation
from vitreous.show.owners import strength
from vitreous.show.why import Legend, Panel, Tried, Trust, WhyPage, percent
from vitreous.words.defaults import known_as

__all__ = ["COMPETES", "SAID", "Answer", "Why", "owning", "strongest", "trust", "why"]

_SHARE = 0.2
"""Of the patches, the strongest: what is taken away, and what is left alone."""
COMPETES = 0.1
"""The probability of the second class from which on it is shown who owns which patch."""
SAID = 5
_OTHER = 0.02
"""By how much the probability of the picture shown may differ from that of the input."""


@dataclass(frozen=True)
class Answer:
    """A picture, and what the model says about exactly this one."""

    picture: Image.Image
    label: str
    probability: float
    explained: float
    """The probability of the class that is explained."""


@dataclass(frozen=True)
class Why:
    """Why a model said what it said about one picture; shows itself in a notebook, ``save`` writes the page."""

    explanation: Explanation
    said: tuple[tuple[str, float], ...]
    """The most probable classes."""
    rival: str | None
    """The most probable class beside the explained one."""
    contrast: Explanation | None
    """Why the explained class rather than its rival."""
    owners: Explanation | None
    """Which of the two owns which patch, where both are probable."""
    without: Answer
    """The strongest fifth of the patches blurred away."""
    alone: Answer
    """Only the strongest fifth of the patches, the rest blurred."""
    checkup: Checkup
    command: str

    def __repr__(self) -> str:
        return f"{self.page().title} {self.page().lead}"

    def _repr_html_(self) -> str:
        page = self.html().replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" style="width:100%;height:900px;border:0" title="why"></iframe>'

    def html(self) -> str:
        """Return the page: one file, nothing fetched from anywhere."""
        return self.page().html()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page."""
        place = Path(path)
        if place.suffix.lower() not in (".html", ".htm"):
            raise VitreousError(f"{place} must end in .html")
        return disk.write_file(place, self.html().encode(), overwrite=overwrite)

    def page(self) -> WhyPage:
        """Return what stands on the page."""
        e, now = self.explanation, self.explanation.probability or 0.0
        known = read(e.method)
        legend = _legend(e, "against", f"for {e.label}")
        note = "The strongest patch sets the scale." + (
            f" Red patches speak for {e.label}, blue ones against it." if legend.signed else ""
        )
        if not known.class_specific:
            note += " This method knows no class: the map would be the same for any."
        return WhyPage(
            title=f"Why “{e.label}”?",
            lead=self._lead(),
            map=Panel("", "", e.overlay(), legend, note),
            photo=e.image,
            says=self.said,
            tried=(
                Tried(e.image, "the picture", percent(now)),
                Tried(self.without.picture, *self._told("without its evidence", self.without, now)),
                Tried(self.alone.picture, *self._told("the evidence alone", self.alone, now)),
            ),
            tried_text=(
                "The strongest fifth of the patches, blurred away and left alone; below each, the probability that the "
                f"model gives {e.label} for exactly this picture."
            ),
            others=self._others(),
            trust_text=self.checkup.sentence[:1].upper() + self.checkup.sentence[1:] + ".",
            trust=[Trust(*trust(each)) for each in self.checkup.tests if each.verdict != "-"],
            command=self.command,
            settings=self._settings(),
        )

    def _lead(self) -> str:
        e, now, left = self.explanation, self.explanation.probability or 0.0, self.without
        said = f"{e.model} gives this picture {percent(now)} {e.label}."
        if left.explained < now / 2 and left.label != e.label:
            article = f"“{left.label}”"
            return f"{said} A fifth of the picture carries the decision: without it the model says {article}."
        if left.explained < now / 2:
            return f"{said} Without a fifth of the picture, the evidence, it is only {percent(left.explained)}."
        return (
            f"{said} The evidence is spread: even without its strongest fifth the model gives it "
            f"{percent(left.explained)}."
        )

    def _told(self, what: str, answer: Answer, now: float) -> tuple[str, str, str]:
        same = answer.label == self.explanation.label
        change = "less" if answer.explained < 0.8 * now else "more" if answer.explained > 1.25 * now else ""
        return f"{what}: {'still ' if same else ''}“{answer.label}”", percent(answer.explained), change

    def _others(self) -> list[Panel]:
        e, panels = self.explanation, []
        if self.contrast is not None and self.rival is not None:
            panels.append(
                Panel(
                    f"Why not “{self.rival}”?",
                    "What speaks for the one rather than for the other.",
                    self.contrast.overlay(),
                    _legend(self.contrast, self.rival, e.label),
                )
            )
        if self.owners is not None:
            panels.append(
                Panel(
                    "Who owns which patch?",
                    f"Where {e.label} or {self.rival} has the stronger evidence; grey where neither has much.",
                    *_owned(self.owners),
                )
            )
        return panels

    def _settings(self) -> str:
        e = self.explanation
        high, wide = e.image.height, e.image.width
        step = known_as(e.method)
        how = e.method if step == e.method else f"{step} = {e.method}"
        return f"Vitreous {__version__} · {e.model} · {how} · seed {e.seed} · {wide} x {high} pixels"


def why(
    model: View | nn.Module,
    image: Any,
    target: TargetSpec = None,
    *,
    effort: str | None = None,
    method: Any = None,
    seed: int = 0,
    memory: float | None = None,
    command: str | None = None,
) -> Why:
    """Return why a model says what it says about one picture: the answer to show to someone who asks.

    ``target``: another class than the predicted one. ``effort`` and ``method`` as in ``explain``. Cost: up to two
    explanations and one by VAR, and those of ``check``.
    """
    looked_at = view(model)
    how: dict[str, Any] = {"effort": effort, "method": method, "seed": seed, "memory": memory}
    e = explain(looked_at, image, target=target, **how)
    if not isinstance(e, Explanation):
        raise VitreousError("why takes one picture, got several")
    if e.target is None:
        raise VitreousError("why asks about a class, not about a function")
    chances = _chances(looked_at, e.image)
    if abs(float(chances[e.target]) - (e.probability or 0.0)) > _OTHER:
        what = "this tensor holds what no picture of 8 bits can"
        raise VitreousError(f"why shows pictures, and {what}; give the photograph")
    order = chances.argsort(descending=True).tolist()
    rival = next((each for each in order if each != e.target), None)
    contrast = owners = None
    given = e.image
    seen = looked_at.preprocess.tensor(given)  # as it is: a picture would be cut to size once more
    if rival is not None and read(e.method).class_specific:
        contrast = explain(looked_at, seen, target=e.target, against=[rival], **how)
        if min(float(chances[rival]), float(chances[e.target])) >= COMPETES:
            both: dict[str, Any] = {"among": [[e.target, rival]], "value": "logprob", "seed": seed, "memory": memory}
            owners = explain(looked_at, seen[None], owning(looked_at), [e.target], **both)[0]
    mask = strongest(to_grid(e.map[None], "token", looked_at, seen[None])[0])
    blurred = given.filter(ImageFilter.GaussianBlur(max(given.size) / 14))
    without, alone = (_mixed(given, blurred, part) for part in (~mask, mask))
    said = tuple((looked_at.label(each), float(chances[each])) for each in order[:SAID])
    return Why(
        e,
        said,
        None if rival is None else looked_at.label(rival),
        contrast,
        owners,
        _asked(looked_at, without, e.target),
        _asked(looked_at, alone, e.target),
        check(e, looked_at, memory=memory),
        command or _python(e, effort),
    )


def owning(looked_at: View) -> str:
    """Return the method that tells which class owns which patch: over a decomposition, where there is a stream."""
    return f"var@sharp({'plus(decompx)' if looked_at.stream else 'gradcam'})"


def strongest(map: Tensor) -> np.ndarray[Any, Any]:
    """Return which fifth of the patches has the largest values."""
    flat = map.flatten()
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[flat.argsort(descending=True, stable=True)[: max(1, round(_SHARE * len(flat)))]] = True
    return mask.view(map.shape).numpy()


def _mixed(picture: Image.Image, other: Image.Image, kept: np.ndarray[Any, Any]) -> Image.Image:
    """Return a picture whose patches that are not kept come from the other one."""
    mask = Image.fromarray((kept * 255).astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
    return Image.composite(picture.convert("RGB"), other.convert("RGB"), mask)


def _asked(looked_at: View, picture: Image.Image, target: int) -> Answer:
    chances = _chances(looked_at, picture)
    best = int(chances.argmax())
    return Answer(picture, looked_at.label(best), float(chances[best]), float(chances[target]))


def _chances(looked_at: View, picture: Image.Image) -> Tensor:
    """Return the probability of every class for exactly this picture."""
    return probabilities(looked_at.logits(looked_at.preprocess.tensor(picture)[None]), None)[0].cpu()


def _legend(e: Explanation, low: str, high: str) -> Legend:
    return Legend(low, high) if bool((e.map < 0).any()) else Legend("little", "much", signed=False)


def _owned(e: Explanation) -> tuple[Image.Image, None, str, list[tuple[str, str]]]:
    """Return the picture of who owns which patch, no scale, no note, and what its colours mean."""
    shares, maps = (e.extras[name].double().numpy() for name in ("distribution", "maps"))
    colours = ["#" + bytes(colour).hex() for colour in show.class_colours(len(shares))]
    return show.owner_overlay(e.image, shares, strength(maps)), None, "", list(zip(colours, e.names, strict=False))


def trust(finding: Any) -> tuple[str, str, str]:
    """Return a word, the verdict and a sentence for someone who reads no statistics."""
    numbers, good = finding.numbers, finding.verdict == "good"
    if finding.name == "faithfulness" and "z" in numbers:
        words = "hurts far more than" if good else "hurts little more than" if finding.verdict == "weak" else "hurts as"
        rest = "ten random orders" if finding.verdict != "bad" else "little as in random orders"
        told = f"Taking patches away in its order {words} {rest} ({numbers['z']:.1f} deviations)."
        word = {"good": "faithful", "weak": "doubtful"}.get(finding.verdict, "unfaithful")
        return word, finding.verdict, told
    if finding.name == "runner-up" and "agreement" in numbers:
        told = f"The map of the next class is {'another one' if good else 'nearly the same'}"
        return (
            "specific" if good else "hardly specific",
            finding.verdict,
            f"{told} (agreement {numbers['agreement']:.2f}).",
        )
    if finding.name == "head" and "agreement" in numbers:
        told = f"With a shuffled classifier the map {'is gone' if good else 'is still much the same'}"
        return "learned" if good else "hardly learned", finding.verdict, f"{told} ({numbers['agreement']:.2f})."
    if finding.name == "stability":
        told = f"Other random numbers give {'the same' if good else 'another'} map"
        word = "repeatable" if good else "unstable"
        return word, finding.verdict, f"{told} (agreement {numbers.get('agreement', 1.0):.2f})."
    if finding.name == "samples":
        told = f"Half of the samples {'say the same' if good else 'say something else'}"
        return "enough" if good else "too few", finding.verdict, f"{told} (agreement {numbers['agreement']:.2f})."
    return finding.name, finding.verdict, finding.sentence[:1].upper() + finding.sentence[1:] + "."


def _python(e: Explanation, effort: str | None) -> str:
    given = "" if effort is None else f", effort={effort!r}"
    name = e.source or e.name
    return f"vt.why(vt.load({e.model!r}), {str(name)!r}, target={e.label!r}{given}, seed={e.seed})"
