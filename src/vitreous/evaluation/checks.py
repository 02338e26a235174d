"""How far to trust one explanation: cheap tests, each in numbers and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from vitreous.errors import MapError, ModelError, TargetError, VitreousError
from vitreous.evaluation.evidence import Evidence, faithfulness, measure
from vitreous.html import percent
from vitreous.methods import Attribution, Method, compute_attributions, get_method, to_grid
from vitreous.metrics.similarity import spearman
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress, ProgressCounter
from vitreous.results import CheckResult, Explanation, Finding
from vitreous.results.diagnostics import CHECK_VERDICTS
from vitreous.tracing import Context, Target, probabilities

# The limits of the other tests than faithfulness: up to the first it is good, up to the second weak, beyond it bad. The
# manual states them.
STABLE = (0.9, 0.6)
"""Rank correlation between the maps of different seeds, at least; and of as many samples again."""
CLASS_SPECIFIC = (0.9, 0.98)
"""Rank correlation with the map of the runner-up class, at most. Look-alikes share evidence, so much is allowed."""
HEAD_DEPENDENT = (0.7, 0.9)
"""Rank correlation with the map under a shuffled head, at most: half and four fifths of the variance of the ranks."""
_FORWARDS, _ATTRIBUTIONS = 44, 4  # blurred images, and how often the map is made again, at most
_SAME = 1e-4  # of the largest value: what rounding may change in a map
_OTHER_MODEL = 0.02  # in probability


def check(
    explanation: Explanation,
    model: VisionModel | nn.Module | None = None,
    *,
    inputs: Tensor | None = None,
    memory_gb: float | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Return what cheap tests say about one explanation; they can condemn it, not acquit it.

    - *faithfulness*: the fifth of the patches with the largest values is blurred away, and it is left alone. Both are
      held against the same patches moved to 20 other places: at how many is ``P`` higher without them, and lower
      with them alone? ``P`` is the probability of the explained class; among the classes it was explained against,
      where there are any.
    - *stability*: the lowest rank correlation (Spearman) between this map and those of two other seeds.
    - *samples*: where a method or a component of it averages samples, the rank correlation ``r`` between the maps of
      two halves of them, and what follows for all of them, ``2 r / (1 + r)`` (Spearman-Brown).
    - *runner-up*: the rank correlation with the map of the most probable other class.
    - *head*: the rank correlation with the map of the same class when the head, norm and classifier, gets the channels
      in a random order (the weight randomization of Adebayo et al., of the last layer, without touching a weight).

    Parameters
    ----------
    explanation : Explanation
        What to check; its target must be a class.
    model : VisionModel or torch.nn.Module, optional
        Its model; not needed as long as the one that it was made with is still there.
    inputs : Tensor, optional
        The tensor ``[3, H, W]`` it was made from, if it was: its image has eight bits only.
    memory_gb : float, optional
        A budget in GiB.
    progress : callable, optional
        Called with how many inputs have been run, and about how many there are.

    Returns
    -------
    CheckResult
        A finding for each test, and the worst of them as the verdict.

    Raises
    ------
    ModelError
        Where the model gives other probabilities than the explanation has.

    Notes
    -----
    Cost: 44 forwards and at most four more attributions (one less for methods that draw nothing at random, two less for
    those that are the same for every class).

    References
    ----------
    J. Adebayo et al., Sanity Checks for Saliency Maps, 2018.

    Examples
    --------
    >>> result = vt.check(vt.explain(model, image, "ixg"))
    >>> [test.name for test in result.tests]
    ['faithfulness', 'stability', 'samples', 'runner-up', 'head']
    """
    origin = explanation.origin
    if model is None and origin is not None:
        model = origin.model()
    if model is None:
        raise VitreousError(f"{explanation.model}, the model of this explanation, is not at hand; give it to check")
    vision_model, method = wrap(model), get_method(explanation.method) if origin is None else origin.method
    tensor = vision_model.preprocess.to_tensor(explanation.image) if inputs is None else inputs
    tensor = tensor[None] if tensor.ndim == 3 else tensor
    if len(tensor) != 1:
        raise ModelError(f"an explanation is checked on one input, got {len(tensor)}")
    target = _target_of(explanation, vision_model)
    return run_checks(
        explanation, method, Context(vision_model, tensor, target, explanation.seed, memory_gb=memory_gb), progress
    )


def _target_of(e: Explanation, model: VisionModel, target: int | None = None) -> Target:
    """Return what an explanation explains, or the same of another class."""
    if e.target is None:
        raise TargetError(f"a check asks about a class, but this explanation is of the function {e.label}")
    request, index = e.request, e.target if target is None else target
    if index >= model.num_classes and model.num_classes > 1:
        raise TargetError(f"{model.name} has no class {index}: it is not the model of this explanation")
    contrast, class_subset = list(request.contrast) or None, request.class_subset or None
    compare_classes = [request.compare_classes] if request.compare_classes else None
    return Target.of(model, 1, index, contrast, request.requested_output, class_subset, compare_classes)


def run_checks(
    explanation: Explanation, method: Method, context: Context, progress: Progress | None = None
) -> CheckResult:
    """Return the outcome of all tests of an explanation; ``context`` holds its one input."""
    if progress is not None:
        total = _FORWARDS + _ATTRIBUTIONS * method.num_forwards(context.model)
        context = context.with_target(context.requested_target)
        context.on_progress = ProgressCounter(progress, max(1, round(total)), is_estimate=True)
    checks = _Checks(explanation, method, context)
    checks.refuse_other_model()
    if not bool((checks.map != checks.map.flatten()[0]).any()):
        flat = Finding("faithfulness", "bad", "the map is the same everywhere")
        return _result([(flat, "it is the same everywhere")])
    tests = [faithfulness(checks.evidence(), explanation.label)]
    for name, other in checks.contexts():
        checks.attributions[name] = compute_attributions(other, [method], check=False)[0], other
    return _result([*tests, checks.stability(), checks.samples(), checks.runner_up(), checks.head()])


def _result(tests: list[tuple[Finding, str]]) -> CheckResult:
    findings = tuple(test for test, _ in tests)
    verdict = max((f.verdict for f in findings if f.verdict != "-"), key=CHECK_VERDICTS.index, default="weak")
    reasons = [reason for test, reason in tests if test.verdict == verdict and reason]
    if verdict == "good":
        sentence = "nothing speaks against this map; cheap tests can condemn a map, not acquit it"
    else:
        advice = "do not rely on this map" if verdict == "bad" else "take this map with care"
        sentence = f"{advice}: {', and '.join(reasons) or 'no test applies to it'}"
    return CheckResult(verdict, sentence, findings)


@dataclass(frozen=True)
class _Checks:
    """One explanation and what its tests need. Each gives a finding, and the reason if it is not good."""

    explanation: Explanation
    method: Method
    context: Context
    attributions: dict[str, tuple[Attribution, Context]] = field(default_factory=dict)
    """What the method returns when one thing is another, and the contexts it did so in."""

    def contexts(self) -> Iterator[tuple[str, Context]]:
        """Yield contexts in which one thing is another; the second seed only where the first changed the map."""
        e, context = self.explanation, self.context
        yield "first", context.with_target(context.target, e.seed + 1)
        if not _close(self.patches("first"), self.map):
            yield "second", context.with_target(context.target, e.seed + 2)
        if self.method.class_specific:
            if self.other_class is not None:
                yield "runner-up", context.with_target(_target_of(e, context.model, self.other_class))
            shuffled = context.model.permute_head(e.seed)
            yield (
                "head",
                Context(
                    shuffled, context.inputs, context.target, context.seed, None, context.memory_gb, context.on_progress
                ),
            )

    # -- the tests -------------------------------------------------------------------------------------

    def evidence(self) -> Evidence:
        """What the model says with the strongest patches blurred, with them alone, and with others."""
        e = self.explanation
        assert e.target is not None
        contrast, subset = e.request.contrast, e.request.class_subset or None
        compare_classes = sorted({e.target, *contrast}) if contrast else subset
        return measure(self.context, e.image, self.map[0], e.target, compare_classes, subset)

    def stability(self) -> tuple[Finding, str]:
        name, first = "stability", self.patches("first")
        second = self.patches("second") if "second" in self.attributions else first
        if _close(first, second):  # or the input had been rounded
            return Finding(name, "-", "the method draws nothing at random"), ""
        lowest = min(rank_agreement(*pair) for pair in ((self.map, first), (self.map, second), (first, second)))
        verdict = _verdict(lowest, STABLE)
        sentence = f"maps of three seeds agree at least to {lowest:.2f}; {STABLE[0]:.2f} or more is good"
        reason = "another seed changes it" if verdict == "weak" else "another seed gives another map"
        return Finding(name, verdict, sentence, {"agreement": lowest}), reason

    def samples(self) -> tuple[Finding, str]:
        name, extras = "samples", self.explanation.extras
        components = self.attributions["first"][1].memo.values()
        halves = [
            c.extras["halves"][0].cpu() for c in components if isinstance(c, Attribution) and "halves" in c.extras
        ]
        halves = [extras["halves"]] if "halves" in extras else halves
        if not halves:
            return Finding(name, "-", "the method averages no samples"), ""
        lowest = min(rank_agreement(half[:1], half[1:]) for half in halves)
        expected = 2 * lowest / (1 + lowest) if lowest > 0 else 0.0
        sentence = (
            f"the maps of two halves of the samples agree to {lowest:.2f}, so all of them to about {expected:.2f}; "
            f"{STABLE[0]:.2f} or more is good"
        )
        numbers = {"agreement": lowest, "all": expected}
        return Finding(name, _verdict(expected, STABLE), sentence, numbers), "more samples would change it"

    def runner_up(self) -> tuple[Finding, str]:
        name, e, model = "runner-up", self.explanation, self.context.model
        if not self.method.class_specific:
            sentence = "the method knows no class: the map would be the same for any"
            return Finding(name, "weak", sentence), f"it would be the same for any class, not for {e.label} alone"
        other = self.other_class
        if other is None:
            return Finding(name, "-", "there is no other class"), ""
        agreement = rank_agreement(self.map, self.patches(name))
        probability, label = float(self.probabilities[other]), model.label(other)
        numbers = {"agreement": agreement, "class": other, "probability": probability}
        sentence = f"agrees to {agreement:.2f} with the map of {label} ({percent(probability)})"
        sentence += f"; {CLASS_SPECIFIC[0]:.2f} or less is good"
        verdict = _verdict(agreement, CLASS_SPECIFIC)
        return Finding(name, verdict, sentence, numbers), f"it hardly differs from the map of {label}"

    def head(self) -> tuple[Finding, str]:
        name = "head"
        if not self.method.class_specific:
            return Finding(name, "-", "the method knows no class: the classifier plays no part in it"), ""
        agreement = rank_agreement(self.map, self.patches(name))
        sentence = f"agrees to {agreement:.2f} with the map under a shuffled classifier"
        sentence += f"; {HEAD_DEPENDENT[0]:.2f} or less is good"
        finding = Finding(name, _verdict(agreement, HEAD_DEPENDENT), sentence, {"agreement": agreement})
        return finding, "much of it does not depend on the classifier"

    # -- what they share -------------------------------------------------------------------------------

    @cached_property
    def probabilities(self) -> Tensor:
        """The probability of every class."""
        logits = self.context.model.logits(self.context.inputs)
        return probabilities(logits, self.explanation.request.class_subset or None)[0].cpu()

    @cached_property
    def map(self) -> Tensor:
        """The explanation's own map ``[1, h, w]``, pixels summed into patches."""
        own = self.explanation.map[None]
        if not torch.isfinite(own).all():
            raise MapError("the map of this explanation is not finite")
        return to_grid(own, "token", self.context.model, self.context.inputs)

    @cached_property
    def other_class(self) -> int | None:
        """The most probable class that the map is neither about nor set against."""
        request, count = self.explanation.request, len(self.probabilities)
        excluded, allowed = {self.explanation.target, *request.contrast}, request.class_subset or range(count)
        order = self.probabilities.argsort(descending=True).tolist()
        return next((index for index in order if index in allowed and index not in excluded), None)

    def patches(self, name: str) -> Tensor:
        """Return the map of a context, on the grid of the explanation's own and then in patches."""
        attribution, context = self.attributions[name]
        is_pixels = self.explanation.map.shape == context.inputs.shape[-2:]
        on_own_grid = to_grid(attribution.map, "pixel" if is_pixels else "token", context.model, context.inputs)
        return to_grid(on_own_grid, "token", context.model, context.inputs).cpu()

    def refuse_other_model(self) -> None:
        name = self.context.model.name
        for index, label, then in (self.explanation.explained, self.explanation.prediction):
            if index is None or index >= len(self.probabilities):
                raise TargetError(f"{name} has no class {index}: it is not the model of this explanation")
            now = float(self.probabilities[index])
            if then is None or abs(now - then) > _OTHER_MODEL:
                raise ModelError(
                    f"{name} gives {label} {now:.3f}, the explanation has {then:.3f}: "
                    "it is of another model, or of a tensor that its image does not hold (give inputs=)"
                )


def rank_agreement(one: Tensor, other: Tensor) -> float:
    """Return Spearman's rank correlation of two maps; 0 where one is flat or not finite."""
    pair = [map.double().reshape(1, *map.shape[-2:]).numpy() for map in (one, other)]
    return float(spearman(*pair)[0])


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _SAME * other.abs().max())


def _verdict(agreement: float, limits: tuple[float, float]) -> str:
    """Return what a rank correlation, as it is printed, means: at least the limits if they fall, else at most."""
    sign = 1 if limits[0] > limits[1] else -1
    good, weak = (sign * round(agreement, 2) >= sign * limit for limit in limits)
    return "good" if good else "weak" if weak else "bad"
