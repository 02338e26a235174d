"""``why``: one picture, one answer. What the model says, where it saw it, and whether that can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn

from vitreous import __version__
from vitreous import io as disk
from vitreous import viz as show
from vitreous.api import explain
from vitreous.errors import VitreousError
from vitreous.evaluation.checks import check
from vitreous.evaluation.evidence import CLEAR, blurred, replaced, strongest
from vitreous.html import Legend, Panel, Tried, Trust, WhyPage, percent, printed
from vitreous.methods import get_method as read
from vitreous.methods import to_grid
from vitreous.models import VisionModel, wrap
from vitreous.registry.defaults import display_name
from vitreous.results import CheckResult, Explanation
from vitreous.results.diagnostics import Finding
from vitreous.results.pages import DIGITS, again
from vitreous.tracing import TargetSpec, probabilities
from vitreous.viz.panels import strength

__all__ = ["COMPETES", "Answer", "Why", "assemble", "owning", "trust", "why"]

COMPETES = 0.1
"""The probability of the second class from which on it is shown who owns which patch."""
_SAID = 5
_OTHER = 0.02
"""By how much the probability of the picture shown may differ from that of the input."""
_FIFTH = (0.16, 0.24)
"""Shares of the patches that are called a fifth."""
_LESS, _MORE = 0.8, 1.25
"""From which ratio on a probability is coloured as lower or higher than before."""


@dataclass(frozen=True)
class Answer:
    """A picture, and what the model says about exactly this one."""

    picture: Image.Image
    target: int
    """The class that it predicts."""
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
    without: Answer | None
    """The strongest fifth of the patches blurred away; ``None`` where the map is the same everywhere."""
    alone: Answer | None
    """Only the strongest fifth of the patches, the rest blurred."""
    check_result: CheckResult
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
        e = self.explanation
        legend = _legend(e, "against", f"for {e.label}")
        note = "The strongest patches set the scale."
        note += f" Red patches speak for {e.label}, blue ones against it." if legend.signed else ""
        if not read(e.method).class_specific:
            note += " This method knows no class: the map would be the same for any."
        return WhyPage(
            title=f"Why “{e.label}”?" if self.is_predicted else f"What speaks for “{e.label}”?",
            lead=f"{self._prediction()} {self._answer()}",
            map=Panel("", "", e.overlay(), legend, note),
            photo=e.image,
            says=self.said,
            tried=self._tried(),
            tried_text=self._tried_text() if self.numbers else "",
            others=self._others(),
            trust_text=self.check_result.sentence[:1].upper() + self.check_result.sentence[1:] + ".",
            trust=[trust(test) for test in self.check_result.tests if test.verdict != "-"],
            command=self.command,
            settings=self._settings(),
        )

    # -- what the test says ----------------------------------------------------------------------------

    @property
    def numbers(self) -> Mapping[str, float]:
        """What the test of the strongest fifth found; nothing where the map is the same everywhere."""
        return self.check_result["faithfulness"].numbers

    @property
    def now(self) -> float:
        """The probability of the explained class; that of the test, so that all numbers are of one run of the model."""
        return self.numbers.get("now", self.explanation.probability or 0.0)

    @property
    def is_predicted(self) -> bool:
        """Whether the explained class is the one that the model predicts."""
        return self.explanation.target == self.explanation.prediction.target

    @property
    def is_needed(self) -> bool:
        """Whether without the strongest fifth less than half is left, and less than at nearly all other places."""
        return bool(self.numbers.get("needed"))

    @property
    def is_enough(self) -> bool:
        """Whether it alone has half or more, with the same prediction, and more than at nearly all other places."""
        return bool(self.numbers.get("enough"))

    def _below_half(self, name: str) -> bool:
        return 2 * printed(self.numbers[name]) < printed(self.numbers["now"])

    @property
    def _piece(self) -> str:
        """The patches that are blurred and left alone, in words."""
        count, every = int(self.numbers["patches"]), int(self.numbers["of"])
        if _FIFTH[0] <= count / every <= _FIFTH[1]:
            return "strongest fifth"
        return f"strongest {'patch' if count == 1 else f'{count} patches'} of {every}"

    def _prediction(self) -> str:
        e, now = self.explanation, percent(self.now)
        if self.is_predicted:
            return f"{e.model} gives this picture {now} {e.label}."
        label = e.prediction.label
        best = percent(dict(self.said).get(label, e.prediction.probability))
        return f"{e.model} says “{label}” ({best}); it gives {e.label} {now}."

    def _answer(self) -> str:
        """Say what the test found, in one of four sentences, or why it says nothing."""
        n, test = self.numbers, self.check_result["faithfulness"]
        if not n:
            return "The map is the same everywhere: it does not say where the evidence is."
        parts = f"{self._left_without()}; {self._left_alone()}"
        if test.verdict == "-" and not n["compared"]:
            return f"Of the map's {self._piece}: {parts}. The map has too few patches to say what that means."
        if test.verdict == "-":
            return "Whatever is blurred, that stays the same: the test below cannot tell where the evidence is."
        words = {
            (True, True): "needed and enough",
            (True, False): "needed, but not enough",
            (False, True): "enough, but not needed",
            (False, False): "neither needed nor enough",
        }
        return f"The map's {self._piece} is {words[self.is_needed, self.is_enough]}: {parts}."

    def _left_without(self) -> str:
        n, left = self.numbers, self.without
        assert left is not None
        rises, low = printed(n["without"]) > printed(n["now"]), self._below_half("without")
        verb = "rises to" if rises else "has only" if low else "still has"
        told = f"without it {self.explanation.label} {_plainly(verb, n['without'])}"
        if low and n["compared"] and not self.is_needed:
            return f"{told}, but {n['places'] - n['lower']:.0f} of {n['places']:.0f} other places leave no more"
        changed = self.is_predicted and left.target != self.explanation.target
        return f"{told}, and the model says “{left.label}”" if changed else told

    def _left_alone(self) -> str:
        n, rest = self.numbers, self.alone
        assert rest is not None
        told = f"alone it {_plainly('has only' if self._below_half('alone') else 'has', n['alone'])}"
        if self._below_half("alone"):
            return told
        if self.is_predicted and rest.target != self.explanation.target:
            return f"{told}, but the model says “{rest.label}”"
        if n["compared"] and not self.is_enough:
            return f"{told}, but {n['places'] - n['higher']:.0f} of {n['places']:.0f} other places have no less"
        return told

    def _tried(self) -> tuple[Tried, ...]:
        e, n = self.explanation, self.numbers
        if self.without is None or self.alone is None:
            return ()
        shown = [Tried(e.image, "the picture", percent(n["now"]))]
        for what, answer, name, beaten, word in (
            (f"without the {self._piece}", self.without, "without", "lower", "lower"),
            (f"the {self._piece} alone", self.alone, "alone", "higher", "higher"),
        ):
            same = "still" if answer.target == e.prediction.target else "now"
            note = ""
            if n["places"]:
                note = (
                    f"{n['places']:.0f} other places of the same size and shape: median "
                    f"{percent(n[f'others_{name}'])}; {word} than at {n[beaten]:.0f} of {n['places']:.0f}"
                )
            caption = f"{what}: {same} “{answer.label}”"
            shown.append(Tried(answer.picture, caption, percent(answer.explained), self._colour(name), note))
        return tuple(shown)

    def _colour(self, name: str) -> str:
        now, then = printed(self.numbers["now"]), printed(self.numbers[name])
        return "less" if then < _LESS * now else "more" if then > _MORE * now else ""

    def _tried_text(self) -> str:
        n, label = self.numbers, self.explanation.label
        told = (
            f"The map's {self._piece} ({n['patches']:.0f} of {n['of']:.0f} patches) is blurred away, and left alone. "
            f"The numbers are the probability of {label} for exactly these pictures: blue if lower by more than a "
            "fifth, red if higher by more than a quarter."
        )
        return f"{told} {self.criterion}".strip()

    @property
    def criterion(self) -> str:
        """What needed and enough mean here, in words; nothing where there is nothing to compare with."""
        n = self.numbers
        if not n or not n["compared"]:
            return ""
        places, most = int(n["places"]), math.ceil(CLEAR * n["places"])
        same = ", the same prediction" if self.is_predicted else ""
        return (
            f"To compare, the same patches were moved to {places} other places. Needed: without them less than half "
            f"is left, and less than at {most} of {places} places or more. Enough: alone they have half or more{same}, "
            f"and more than at {most} of {places} places or more."
        )

    # -- the rest of the page --------------------------------------------------------------------------

    def _others(self) -> list[Panel]:
        e, panels = self.explanation, []
        if self.contrast is not None and self.rival is not None:
            panels.append(
                Panel(
                    f"Why not “{self.rival}”?" if self.is_predicted else f"“{e.label}” rather than “{self.rival}”",
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
        step = display_name(e.method)
        how = e.method if step == e.method else f"{step} = {e.method}"
        weights = "" if e.identity is None else f" · weights {e.identity['weights'][:DIGITS]}"
        size = f"{e.image.width} x {e.image.height} pixels"
        return f"Vitreous {__version__} · {e.model}{weights} · {how} · seed {e.seed} · {size}"


def why(
    model: VisionModel | nn.Module,
    image: Any,
    method: Any = None,
    target: TargetSpec = None,
    *,
    effort: str | None = None,
    seed: int = 0,
    memory_gb: float | None = None,
    command: str | None = None,
) -> Why:
    """Return why a model says what it says about one picture: the answer to show to someone who asks.

    ``target``: another class than the predicted one. ``effort`` and ``method`` as in ``explain``. ``command``: what to
    print as the way to make the page again, where that is not this call. Cost: up to two explanations and one by VAR,
    and those of ``check``.
    """
    vision_model = wrap(model)
    how: dict[str, Any] = {"effort": effort, "method": method, "seed": seed, "memory_gb": memory_gb}
    e = explain(vision_model, image, target=target, **how)
    if not isinstance(e, Explanation):
        raise VitreousError("why takes one picture, got several")
    if e.target is None:
        raise VitreousError("why asks about a class, not about a function")
    chances = _chances(vision_model, e.image)
    if abs(float(chances[e.target]) - (e.probability or 0.0)) > _OTHER:
        what = "this tensor holds what no picture of 8 bits can"
        raise VitreousError(f"why shows pictures, and {what}; give the photograph")
    rival = _rival(chances, e.target)
    contrast = owners = None
    seen = vision_model.preprocess.to_tensor(e.image)  # as it is: a picture would be cut to size once more
    if rival is not None and read(e.method).class_specific:
        contrast = explain(vision_model, seen, target=e.target, contrast=[rival], **how)
        if min(float(chances[rival]), float(chances[e.target])) >= COMPETES:
            both: dict[str, Any] = {
                "compare_classes": [[e.target, rival]],
                "output": "logprob",
                "seed": seed,
                "memory_gb": memory_gb,
            }
            owners = explain(vision_model, seen[None], owning(vision_model), [e.target], **both)[0]
    command = command or again(vision_model, e, {"target": target, **how})
    return assemble(vision_model, e, chances, contrast, owners, check(e, vision_model, memory_gb=memory_gb), command)


def assemble(
    model: VisionModel,
    e: Explanation,
    chances: Tensor,
    contrast: Explanation | None,
    owners: Explanation | None,
    check_result: CheckResult,
    command: str,
) -> Why:
    """Return the answer that all these make; the pictures that were tried are those of the check."""
    assert e.target is not None
    order, n = chances.argsort(descending=True, stable=True).tolist(), check_result["faithfulness"].numbers
    rival = _rival(chances, e.target)
    without = alone = None
    if n:
        seen = model.preprocess.to_tensor(e.image)[None]
        mask = strongest(to_grid(e.map[None], "token", model, seen)[0])
        blur = blurred(e.image)

        def answer(gone: Tensor, name: str) -> Answer:
            index = int(n[f"class_{name}"])
            label = model.label(index)
            same = label == e.label and index != e.target  # some classes share their name
            picture = replaced(e.image, blur, gone)
            return Answer(picture, index, f"{label}, class {index}" if same else label, n[f"top_{name}"], n[name])

        without, alone = answer(mask, "without"), answer(~mask, "alone")
    own = {} if not n else {e.target: n["now"]}
    said = tuple((model.label(each), own.get(each, float(chances[each]))) for each in order[:_SAID])
    named = None if rival is None else model.label(rival)
    return Why(e, said, named, contrast, owners, without, alone, check_result, command)


def _plainly(verb: str, chance: float) -> str:
    """Return a verb and a probability; "only" goes without saying before "under 0.01 %"."""
    words = percent(chance)
    return f"{verb.removesuffix(' only') if words.startswith('under') else verb} {words}"


def owning(model: VisionModel) -> str:
    """Return the method that tells which class owns which patch: over a decomposition, where there is a stream."""
    return f"var@sharp({'plus(decompx)' if model.has_residual_stream else 'gradcam'})"


def _rival(chances: Tensor, target: int) -> int | None:
    """Return the most probable other class."""
    order = chances.argsort(descending=True, stable=True).tolist()
    return next((each for each in order if each != target), None)


def _chances(model: VisionModel, picture: Image.Image) -> Tensor:
    """Return the probability of every class for exactly this picture."""
    return probabilities(model.logits(model.preprocess.to_tensor(picture)[None]), None)[0].cpu()


def _legend(e: Explanation, low: str, high: str) -> Legend:
    return Legend(low, high) if e.scale.signed else Legend("little", "much", signed=False)


def _owned(e: Explanation) -> tuple[Image.Image, None, str, list[tuple[str, str]]]:
    """Return the picture of who owns which patch, no scale, no note, and what its colours mean."""
    shares, maps = (e.extras[name].double().numpy() for name in ("distribution", "maps"))
    colours = ["#" + bytes(colour).hex() for colour in show.class_colours(len(shares))]
    return (
        show.owner_overlay(e.image, shares, strength(maps)),
        None,
        "",
        list(zip(colours, e.class_names, strict=False)),
    )


def trust(finding: Finding) -> Trust:
    """Return a finding as it stands on a page."""
    return Trust(finding.word, finding.verdict, finding.sentence[:1].upper() + finding.sentence[1:] + ".")
