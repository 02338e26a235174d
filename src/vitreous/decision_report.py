"""``why``: one image, one answer. What the model predicts, where it saw it, and whether that can be believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from PIL import Image
from torch import Tensor, nn

from vitreous import __version__, viz
from vitreous import io as disk
from vitreous.api import FINGERPRINT_DIGITS, explanations_of, python_call
from vitreous.datasets import LoadedImage, load_images
from vitreous.errors import VitreousError
from vitreous.evaluation.checks import run_checks
from vitreous.evaluation.evidence import CLEAR, blurred, replaced, strongest
from vitreous.evaluation.plan import warn_ignored
from vitreous.html import Legend, Panel, Tried, WhyPage, as_sentence, percent, printed, render
from vitreous.methods import Method, compute_attributions, get_method, resolve_method, to_grid
from vitreous.models import VisionModel, wrap
from vitreous.registry import check_memory
from vitreous.registry.defaults import display_name
from vitreous.results import CheckResult, Explanation, Finding, Origin
from vitreous.tracing import Context, Target, TargetSpec, probabilities
from vitreous.viz.panels import strength

_COMPETES = 0.1
"""The probability of the second class from which on it is shown which class has which patch."""
_MAX_CLASSES = 5
_OTHER_IMAGE = 0.02
"""By how much the probability of the image shown may differ from that of the input."""
_A_FIFTH = (0.16, 0.24)
"""Shares of the patches that are called a fifth."""
_LESS, _MORE = 0.8, 1.25
"""From which ratio on a probability is coloured as lower or higher than before."""


@dataclass(frozen=True)
class BlurredImage:
    """An image with patches blurred, and what the model says about exactly this one."""

    image: Image.Image
    target: int
    """The class that it predicts."""
    label: str
    explained: float
    """The probability of the class that is explained."""


@dataclass(frozen=True)
class Why:
    """Why a model predicts what it predicts for one image: made by ``vt.why``; ``save`` writes the page.

    Parameters
    ----------
    explanation : Explanation
        The map.
    classes : tuple of (int, str, float)
        The most probable classes: index, name and probability.
    runner_up : tuple of (int, str), optional
        The most probable class beside the explained one.
    contrast : Explanation, optional
        Why the explained class rather than the most probable other one.
    class_assignment : Explanation, optional
        Which of the two has which patch, where both are probable.
    without : BlurredImage, optional
        The strongest fifth of the patches blurred away; ``None`` where the map is the same everywhere.
    alone : BlurredImage, optional
        Only the strongest fifth of the patches, the rest blurred.
    check_result : CheckResult
        How far the map can be trusted.
    command : str
        What makes the page again.

    Examples
    --------
    >>> answer = vt.why(model, image)
    >>> answer.save(tmp_path / "why.html").name
    'why.html'
    """

    explanation: Explanation
    classes: tuple[tuple[int, str, float], ...]
    runner_up: tuple[int, str] | None
    contrast: Explanation | None
    class_assignment: Explanation | None
    without: BlurredImage | None
    alone: BlurredImage | None
    check_result: CheckResult
    command: str

    def __repr__(self) -> str:
        page = self.page()
        return f"{page.title} {page.lead}"

    def _repr_html_(self) -> str:
        return render("frame.html", page=self.html())

    def html(self) -> str:
        """Return the page: one file, nothing fetched from anywhere."""
        return self.page().html()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page as ``.html``, and return the path.

        Parameters
        ----------
        path : str or Path
            Where to.
        overwrite : bool, default False
            Replace what is there.
        """
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise VitreousError(f"{path} must end in .html")
        return disk.write_file(path, self.html().encode(), overwrite=overwrite)

    def page(self) -> WhyPage:
        """Return what stands on the page."""
        e = self.explanation
        legend = _legend(e, "against", f"for {e.label}")
        note = "The strongest patches set the scale."
        note += f" Red patches speak for {e.label}, blue ones against it." if legend.signed else ""
        if not e.class_specific:
            note += " This method knows no class: the map would be the same for any."
        return WhyPage(
            title=f"Why “{e.label}”?" if self.is_predicted else f"What speaks for “{e.label}”?",
            lead=f"{self._prediction()} {self._answer()}",
            map=Panel("", "", e.overlay(), legend, note),
            photo=e.image,
            says=[(label, probability) for _, label, probability in self.classes],
            tried=self._test_images(),
            tried_text=self._test_text() if self.numbers else "",
            others=self._panels(),
            trust_text=as_sentence(self.check_result.sentence),
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
    def probability(self) -> float:
        """That of the explained class, as the test found it: so all numbers are of one run of the model."""
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

    @property
    def criterion(self) -> str:
        """What needed and enough mean here, in words; nothing where there is nothing to compare with."""
        n = self.numbers
        if not n or not n["compared"]:
            return ""
        count, most = int(n["places"]), math.ceil(CLEAR * n["places"])
        same = ", the same prediction" if self.is_predicted else ""
        return (
            f"To compare, the same patches were moved to {count} other places. Needed: without them less than half "
            f"is left, and less than at {most} of {count} positions or more. Enough: alone they have half or "
            f"more{same}, and more than at {most} of {count} positions or more."
        )

    def _is_below_half(self, name: str) -> bool:
        return 2 * printed(self.numbers[name]) < printed(self.numbers["now"])

    @property
    def _patches(self) -> str:
        """The patches that are blurred and left alone, in words."""
        count, total = int(self.numbers["patches"]), int(self.numbers["of"])
        if _A_FIFTH[0] <= count / total <= _A_FIFTH[1]:
            return "strongest fifth"
        return f"strongest {'patch' if count == 1 else f'{count} patches'} of {total}"

    def _prediction(self) -> str:
        e, now = self.explanation, percent(self.probability)
        if self.is_predicted:
            return f"{e.model} gives this picture {now} {e.label}."
        by_name = {label: probability for _, label, probability in self.classes}
        best = percent(by_name.get(e.prediction.label, e.prediction.probability or 0.0))
        return f"{e.model} says “{e.prediction.label}” ({best}); it gives {e.label} {now}."

    def _answer(self) -> str:
        """Say what the test found, in one of four sentences, or why it says nothing."""
        n, test = self.numbers, self.check_result["faithfulness"]
        if not n:
            return "The map is the same everywhere: it does not say where the evidence is."
        probabilities = f"{self._left_without()}; {self._left_alone()}"
        if test.verdict == "-" and not n["compared"]:
            return f"Of the map's {self._patches}: {probabilities}. The map has too few patches to say what that means."
        if test.verdict == "-":
            return "Whatever is blurred, that stays the same: the test below cannot tell where the evidence is."
        verdict = {
            (True, True): "needed and enough",
            (True, False): "needed, but not enough",
            (False, True): "enough, but not needed",
            (False, False): "neither needed nor enough",
        }[self.is_needed, self.is_enough]
        return f"The map's {self._patches} is {verdict}: {probabilities}."

    def _left_without(self) -> str:
        n, e, left = self.numbers, self.explanation, self.without
        assert left is not None
        rises, is_low = printed(n["without"]) > printed(n["now"]), self._is_below_half("without")
        verb = "rises to" if rises else "has only" if is_low else "still has"
        text = f"without it {e.label} {_phrase(verb, n['without'])}"
        if is_low and n["compared"] and not self.is_needed:
            return f"{text}, but {n['places'] - n['lower']:.0f} of {n['places']:.0f} other places leave no more"
        is_changed = self.is_predicted and left.target != e.target
        return f"{text}, and the model says “{left.label}”" if is_changed else text

    def _left_alone(self) -> str:
        n, alone = self.numbers, self.alone
        assert alone is not None
        is_low = self._is_below_half("alone")
        text = f"alone it {_phrase('has only' if is_low else 'has', n['alone'])}"
        if is_low:
            return text
        if self.is_predicted and alone.target != self.explanation.target:
            return f"{text}, but the model says “{alone.label}”"
        if n["compared"] and not self.is_enough:
            return f"{text}, but {n['places'] - n['higher']:.0f} of {n['places']:.0f} other places have no less"
        return text

    def _test_images(self) -> list[Tried]:
        e, n = self.explanation, self.numbers
        if self.without is None or self.alone is None:
            return []
        images = [Tried(e.image, "the picture", percent(n["now"]))]
        for what, blurred_image, name, beaten, word in (
            (f"without the {self._patches}", self.without, "without", "lower", "lower"),
            (f"the {self._patches} alone", self.alone, "alone", "higher", "higher"),
        ):
            still = "still" if blurred_image.target == e.prediction.target else "now"
            note = ""
            if n["places"]:
                note = (
                    f"{n['places']:.0f} other places of the same size and shape: median "
                    f"{percent(n[f'others_{name}'])}; {word} than at {n[beaten]:.0f} of {n['places']:.0f}"
                )
            caption = f"{what}: {still} “{blurred_image.label}”"
            probability, change = percent(blurred_image.explained), self._change(name)
            images.append(Tried(blurred_image.image, caption, probability, change, note))
        return images

    def _change(self, name: str) -> str:
        now, then = printed(self.numbers["now"]), printed(self.numbers[name])
        return "less" if then < _LESS * now else "more" if then > _MORE * now else ""

    def _test_text(self) -> str:
        n, label = self.numbers, self.explanation.label
        text = (
            f"The map's {self._patches} ({n['patches']:.0f} of {n['of']:.0f} patches) is blurred away, and left alone. "
            f"The numbers are the probability of {label} for exactly these pictures: blue if lower by more than a "
            "fifth, red if higher by more than a quarter."
        )
        return f"{text} {self.criterion}".strip()

    # -- the rest of the page --------------------------------------------------------------------------

    def _panels(self) -> list[Panel]:
        e, panels = self.explanation, list[Panel]()
        other = "" if self.runner_up is None else self.runner_up[1]
        if self.contrast is not None:
            heading = f"Why not “{other}”?" if self.is_predicted else f"“{e.label}” rather than “{other}”"
            text = "What speaks for the one rather than for the other."
            panels.append(Panel(heading, text, self.contrast.overlay(), _legend(self.contrast, other, e.label)))
        if self.class_assignment is not None:
            text = f"Where {e.label} or {other} has the stronger evidence; grey where neither has much."
            image, keys = _assigned(self.class_assignment)
            panels.append(Panel("Who owns which patch?", text, image, keys=keys))
        return panels

    def _settings(self) -> str:
        e = self.explanation
        level = display_name(e.method)
        method = e.method if level == e.method else f"{level} = {e.method}"
        weights = "" if e.identity is None else f" · weights {e.identity['weights'][:FINGERPRINT_DIGITS]}"
        size = f"{e.image.width} x {e.image.height} pixels"
        return f"Vitreous {__version__} · {e.model}{weights} · {method} · seed {e.seed} · {size}"


def why(
    model: VisionModel | nn.Module,
    image: Any,
    method: str | Method | None = None,
    target: TargetSpec = None,
    *,
    effort: str | None = None,
    seed: int = 0,
    memory_gb: float | None = None,
    command: str | None = None,
) -> Why:
    """Say why a model predicts what it predicts for one image: the answer to show to someone who asks.

    Parameters
    ----------
    model : VisionModel or torch.nn.Module
        The model to look into.
    image : path, PIL.Image.Image, array or Tensor
        One image.
    method
        As in ``explain``.
    target : int or str, optional
        Another class than the predicted one.
    effort
        As in ``explain``.
    seed : int, default 0
        Of everything random.
    memory_gb : float, optional
        A budget in GiB.
    command : str, optional
        What to print as the way to make the page again, where that is not this call.

    Returns
    -------
    Why
        Prints a sentence; ``save`` writes the page.

    Notes
    -----
    Cost: up to two attributions and one by VAR, and those of ``check``.

    Examples
    --------
    >>> print(repr(vt.why(model, image, "ixg"))[:3])
    Why
    """
    check_memory(memory_gb)
    vision_model = wrap(model)
    chosen = resolve_method(method, effort, vision_model)
    warn_ignored([chosen], target, "logit")
    images = list(islice(load_images(image, vision_model), 2))
    if len(images) != 1:
        raise VitreousError("why takes one image, got several")
    spec = Target.of(vision_model, 1, target)
    if spec.function is not None:
        raise VitreousError("why asks about a class, not about a function")
    context = Context(vision_model, images[0].tensor[None], spec, seed, memory_gb=memory_gb)
    origin = Origin(ref(model), chosen, vision_model.snapshot())
    (attribution,) = compute_attributions(context, [chosen])
    (explanation,) = explanations_of(context, images, vision_model, origin, attribution)
    inputs = vision_model.preprocess.to_tensor(explanation.image)[None]  # as it is: a file would be cropped once more
    if not torch.equal(inputs, images[0].tensor[None]):
        context = Context(vision_model, inputs, context.target, seed, memory_gb=memory_gb)
    explain = partial(_explain, context, replace(images[0], tensor=inputs[0]), vision_model, origin)
    if command is None:
        arguments = {"target": target, "effort": effort, "method": method, "seed": seed, "memory_gb": memory_gb}
        command = python_call("why", vision_model, explanation, arguments)
    return build(vision_model, explanation, explain, partial(run_checks, explanation, chosen, context), command)


def _explain(
    context: Context,
    image: LoadedImage,
    model: VisionModel,
    origin: Origin,
    method: str | None = None,
    contrast: int | None = None,
    compare_classes: Sequence[int] | None = None,
) -> Explanation:
    """Explain the class of a context against another one, or compare it with others by their log-probability."""
    target, output = context.target.classes, "logit" if compare_classes is None else "logprob"
    assert target is not None
    sets = None if compare_classes is None else [list(compare_classes)]
    spec = Target.of(model, 1, int(target[0]), contrast, output, None, sets)
    origin = origin if method is None else origin._replace(method=get_method(method))
    other = context.with_target(spec)
    (attribution,) = compute_attributions(other, [origin.method])
    return explanations_of(other, [image], model, origin, attribution)[0]


def build(
    model: VisionModel,
    explanation: Explanation,
    explain: Callable[..., Explanation],
    check: Callable[[], CheckResult],
    command: str,
) -> Why:
    """Return the answer about one explanation.

    ``explain(contrast=CLASS)`` explains the same class against another, and ``explain(SPEC, compare_classes=CLASSES)``
    assigns patches to classes; ``check()`` tests the map.
    """
    e, target = explanation, explanation.target
    if target is None:
        raise VitreousError("why asks about a class, not about a function")
    class_probabilities = probabilities(model.logits(model.preprocess.to_tensor(e.image)[None]))[0].cpu()
    if abs(float(class_probabilities[target]) - (e.probability or 0.0)) > _OTHER_IMAGE:
        raise VitreousError(
            "why shows pictures, and this tensor holds what no picture of 8 bits can; give the photograph"
        )
    runner_up = next(iter(_most_probable(class_probabilities, other_than=target)), None)
    contrast = class_assignment = None
    if runner_up is not None and e.class_specific:
        contrast = explain(contrast=runner_up)
        if float(class_probabilities[[runner_up, target]].min()) >= _COMPETES:
            class_assignment = explain(class_assignment_method(model), compare_classes=[target, runner_up])
    return assemble(model, e, class_probabilities, contrast, class_assignment, check(), command)


def assemble(
    model: VisionModel,
    e: Explanation,
    class_probabilities: Tensor,
    contrast: Explanation | None,
    class_assignment: Explanation | None,
    check_result: CheckResult,
    command: str,
) -> Why:
    """Return the answer that all these make."""
    target, numbers = e.target, check_result["faithfulness"].numbers
    assert target is not None
    without = alone = None
    if numbers:
        inputs = model.preprocess.to_tensor(e.image)[None]
        mask = strongest(to_grid(e.map[None], "token", model, inputs)[0])
        without = _blurred_image(model, e, numbers, mask, "without")
        alone = _blurred_image(model, e, numbers, ~mask, "alone")
    measured = {target: numbers["now"]} if numbers else {}
    classes = tuple(
        (index, model.label(index), measured.get(index, float(class_probabilities[index])))
        for index in _most_probable(class_probabilities)[:_MAX_CLASSES]
    )
    index = next(iter(_most_probable(class_probabilities, other_than=target)), None)
    runner_up = None if index is None else (index, model.label(index))
    return Why(e, classes, runner_up, contrast, class_assignment, without, alone, check_result, command)


def _most_probable(class_probabilities: Tensor, other_than: int | None = None) -> list[int]:
    """Return the classes, the most probable one first."""
    order = class_probabilities.argsort(descending=True, stable=True).tolist()
    return [index for index in order if index != other_than]


def class_assignment_method(model: VisionModel) -> str:
    """Return the method that assigns patches to classes: over a decomposition, where there is a residual stream."""
    return f"var@sharp({'plus(decompx)' if model.has_residual_stream else 'gradcam'})"


def trust(finding: Finding) -> dict[str, str]:
    """Return a finding as it stands on a page."""
    return {"word": finding.word, "verdict": finding.verdict, "sentence": as_sentence(finding.sentence)}


def _blurred_image(
    model: VisionModel, e: Explanation, numbers: Mapping[str, float], gone: Tensor, name: str
) -> BlurredImage:
    """Return the image without some patches, as the check tried it."""
    index = int(numbers[f"class_{name}"])
    label = model.label(index)
    is_namesake = label == e.label and index != e.target  # some classes share their name
    image = replaced(e.image, blurred(e.image), gone)
    return BlurredImage(image, index, f"{label}, class {index}" if is_namesake else label, numbers[name])


def _phrase(verb: str, probability: float) -> str:
    """Return a verb and a probability; "only" goes without saying before "under 0.01 %"."""
    text = percent(probability)
    return f"{verb.removesuffix(' only') if text.startswith('under') else verb} {text}"


def _legend(e: Explanation, lowest: str, highest: str) -> Legend:
    return Legend(lowest, highest) if e.scale.signed else Legend("little", "much", signed=False)


def _assigned(e: Explanation) -> tuple[Image.Image, list[tuple[str, str]]]:
    """Return the picture of which class has which patch, and what its colours mean."""
    distribution, maps = (e.extras[name].double().numpy() for name in ("distribution", "maps"))
    colours = ["#" + bytes(colour).hex() for colour in viz.class_colours(len(distribution))]
    picture = viz.owner_overlay(e.image, distribution, strength(maps))
    return picture, list(zip(colours, e.class_names, strict=False))
