"""``check``: how far to trust one explanation. Five cheap tests, each in numbers and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from vitreous.errors import MapError, ModelError, TargetError, VitreousError
from vitreous.evaluation.evidence import Evidence, finding, measure
from vitreous.html import percent
from vitreous.methods import Attribution, Method, compute_attributions, get_method, to_grid
from vitreous.metrics.similarity import spearman
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress
from vitreous.results.diagnostics import CHECK_VERDICTS, CheckResult, Finding
from vitreous.results.explanation import Explanation
from vitreous.tracing import Context, Target, probabilities
from vitreous.tracing.prng import PRNGKey

__all__ = ["check"]

# The limits of the other tests than faithfulness: up to the first it is good, up to the second weak, beyond it bad. The
# manual states them.
STABLE = (0.9, 0.6)
"""Rank correlation between the maps of different seeds, at least; and of as many samples again."""
OWN = (0.9, 0.98)
"""Rank correlation with the map of the runner-up class, at most. Look-alikes share evidence, so much is allowed."""
ANSWERABLE = (0.7, 0.9)
"""Rank correlation with the map under a shuffled head, at most: half and four fifths of the variance of the ranks."""

_FORWARDS, _AGAIN = 44, 4  # blurred pictures, and how often the map is made again, at most
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

    ``model`` is not needed for an explanation made in this process, as long as its model is still there. ``inputs`` is
    the tensor ``[3, H, W]`` it was made from, if it was: its picture has eight bits only. ``progress`` is called with
    how many inputs have been run, and about how many there are.

    - *faithfulness*: the fifth of the patches with the largest values is blurred away, and it is left alone. Both are
      held against the same patches moved to 20 other places: at how many is ``P`` higher without them, and lower with
      them alone? ``P`` is the probability of the explained class; among the classes it was explained against, where
      there are any. See ``vitreous.evaluation.evidence``.
    - *stability*: the lowest rank correlation (Spearman) between this map and those of two other seeds.
    - *samples*: where a method or a part of it averages samples, the rank correlation ``r`` between the maps of two
      halves of them, and what follows for all of them, ``2 r / (1 + r)`` (Spearman-Brown).
    - *runner-up*: the rank correlation with the map of the most probable other class.
    - *head*: the rank correlation with the map of the same class when the head, norm and classifier, gets the channels
      in a random order (the weight randomisation of Adebayo et al. 2018, of the last layer, without touching a weight).

    Maps of pixels are summed into patches first. Cost: 44 forwards and at most four more explanations (one less for
    methods that draw nothing at random, two less for those that know no class).
    """
    seen, how = _maker(explanation, model)
    on_progress = None if progress is None else _Counted(progress, _FORWARDS + _AGAIN * how.num_forwards(seen))
    case = _Case(explanation, seen, how, inputs, memory_gb, on_progress)
    tests = list(case.tests())
    findings = tuple(test for test, _ in tests)
    verdict = max((f.verdict for f in findings if f.verdict != "-"), key=CHECK_VERDICTS.index, default="weak")
    reasons = [reason for test, reason in tests if test.verdict == verdict and reason]
    return CheckResult(verdict, _in_words(verdict, reasons), findings)


def _maker(explanation: Explanation, model: VisionModel | nn.Module | None) -> tuple[VisionModel, Method]:
    """Return the model and the method behind an explanation."""
    origin = explanation.origin
    given = origin.model() if model is None and origin is not None else model
    if given is None:
        raise VitreousError(f"{explanation.model}, the model of this explanation, is not at hand; give it to check")
    return wrap(given), get_method(explanation.method) if origin is None else origin.method


def _in_words(verdict: str, reasons: list[str]) -> str:
    if verdict == "good":
        return "nothing speaks against this map; cheap tests can condemn a map, not acquit it"
    why = ", and ".join(reasons) or "no test applies to it"
    return f"{'do not rely on this map' if verdict == 'bad' else 'take this map with care'}: {why}"


@dataclass(frozen=True)
class _Case:
    """One explanation and what its tests need. Each test gives a finding, and the reason if it is not good."""

    explanation: Explanation
    view: VisionModel
    how: Method
    given: Tensor | None
    memory: float | None
    on_progress: Callable[[int], None] | None

    def tests(self) -> Iterator[tuple[Finding, str]]:
        self._same_model()
        if not bool((self.map != self.map.flatten()[0]).any()):
            yield Finding("faithfulness", "bad", "the map is the same everywhere"), "it is the same everywhere"
            return
        yield finding(self.evidence, self.explanation.label)
        yield self.stability()
        yield self.samples()
        yield self.runner_up()
        yield self.head()

    # -- the tests -------------------------------------------------------------------------------------

    def stability(self) -> tuple[Finding, str]:
        name, seed = "stability", self.explanation.seed
        first = self._other_seed[0]
        drawn = None if _close(first, self.map) else self._again(seed=seed + 2)
        if drawn is None or _close(first, drawn):  # the latter where the input had been rounded
            return Finding(name, "-", "the method draws nothing at random"), ""
        lowest = min(agreement(*pair) for pair in ((self.map, first), (self.map, drawn), (first, drawn)))
        verdict = _at_least(lowest, STABLE)
        sentence = f"maps of three seeds agree at least to {lowest:.2f}; {STABLE[0]:.2f} or more is good"
        return Finding(name, verdict, sentence, {"agreement": lowest}), (
            "another seed changes it" if verdict == "weak" else "another seed gives another map"
        )

    def samples(self) -> tuple[Finding, str]:
        name, halves = "samples", self._other_seed[1]
        if "halves" in self.explanation.extras:
            halves = [self.explanation.extras["halves"]]
        if not halves:
            return Finding(name, "-", "the method averages no samples"), ""
        lowest = min(agreement(halve[:1], halve[1:]) for halve in halves)
        whole = 2 * lowest / (1 + lowest) if lowest > 0 else 0.0
        sentence = (
            f"the maps of two halves of the samples agree to {lowest:.2f}, so all of them to about {whole:.2f}; "
            f"{STABLE[0]:.2f} or more is good"
        )
        numbers = {"agreement": lowest, "all": whole}
        return Finding(name, _at_least(whole, STABLE), sentence, numbers), "more samples would change it"

    def runner_up(self) -> tuple[Finding, str]:
        name, label = "runner-up", self.explanation.label
        if not self.how.class_specific:
            sentence = "the method knows no class: the map would be the same for any"
            return Finding(name, "weak", sentence), f"it would be the same for any class, not for {label} alone"
        taken = {self.explanation.target, *self.explanation.contrast}
        allowed = self.explanation.class_subset or range(len(self.chances))
        others = [c for c in self.chances.argsort(descending=True).tolist() if c in allowed and c not in taken]
        if not others:
            return Finding(name, "-", "there is no other class"), ""
        other = self.view.label(others[0])
        agreed = agreement(self.map, self._again(target=others[0]))
        numbers = {"agreement": agreed, "class": others[0], "probability": float(self.chances[others[0]])}
        chance = percent(float(self.chances[others[0]]))
        sentence = f"agrees to {agreed:.2f} with the map of {other} ({chance}); {OWN[0]:.2f} or less is good"
        return Finding(name, _at_most(agreed, OWN), sentence, numbers), f"it hardly differs from the map of {other}"

    def head(self) -> tuple[Finding, str]:
        name = "head"
        if not self.how.class_specific:
            return Finding(name, "-", "the method knows no class: the classifier plays no part in it"), ""
        agreed = agreement(self.map, self._again(self.view.permute_head(self.explanation.seed)))
        sentence = f"agrees to {agreed:.2f} with the map under a shuffled classifier"
        sentence += f"; {ANSWERABLE[0]:.2f} or less is good"
        verdict = _at_most(agreed, ANSWERABLE)
        return Finding(name, verdict, sentence, {"agreement": agreed}), "much of it does not depend on the classifier"

    # -- what they share -------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> Tensor:
        """The input ``[1, 3, H, W]``: from the picture, or the tensor that was given."""
        tensor = self.view.preprocess.to_tensor(self.explanation.image) if self.given is None else self.given
        tensor = tensor[None] if tensor.ndim == 3 else tensor
        self.view.check_inputs(tensor)
        if len(tensor) != 1:
            raise ModelError(f"an explanation is checked on one input, got {len(tensor)}")
        return self.view.cast(tensor)

    @cached_property
    def chances(self) -> Tensor:
        """The probability of every class."""
        return probabilities(self.view.logits(self.inputs), self.explanation.class_subset or None)[0].cpu()

    @cached_property
    def map(self) -> Tensor:
        """The explanation's own map ``[1, h, w]``, pixels summed into patches."""
        own = self.explanation.map[None]
        if not torch.isfinite(own).all():
            raise MapError("the map of this explanation is not finite")
        return to_grid(own, "token", self.view, self.inputs)

    @cached_property
    def _other_seed(self) -> tuple[Tensor, list[Tensor]]:
        """The map of the next seed, and the maps ``[2, h, w]`` of halves of samples that any part of it had."""
        context = self._session(seed=self.explanation.seed + 1)
        found = self._found(context)
        answers = [each for each in context.memo.values() if isinstance(each, Attribution)]
        return found, [answer.extras["halves"][0].cpu() for answer in answers if "halves" in answer.extras]

    def _again(self, seen: VisionModel | None = None, target: int | None = None, seed: int | None = None) -> Tensor:
        """Return the map of the same method when one thing is another."""
        return self._found(self._session(seen, target, seed))

    def _session(self, seen: VisionModel | None = None, target: int | None = None, seed: int | None = None) -> Context:
        e, seen = self.explanation, seen or self.view
        asked, rivals = e.target if target is None else target, list(e.contrast) or None
        aim = Target.of(
            seen, 1, asked, rivals, e.asked, e.class_subset or None, [e.compare_classes] if e.compare_classes else None
        )
        return Context(
            seen,
            self.inputs,
            aim,
            e.seed if seed is None else seed,
            memory_gb=self.memory,
            on_progress=self.on_progress,
        )

    def _found(self, context: Context) -> Tensor:
        """Return the method's map in a session, on the grid of the explanation's own and then in patches."""
        (answered,) = compute_attributions(context, [self.how], check=False)
        fine = self.explanation.map.shape == self.inputs.shape[-2:]
        found_map = to_grid(answered.map, "pixel" if fine else "token", context.model, self.inputs)
        return to_grid(found_map, "token", context.model, self.inputs).cpu()

    @cached_property
    def evidence(self) -> Evidence:
        """What the model says with the strongest patches blurred, with them alone, and with others."""
        e = self.explanation
        assert e.target is not None
        compare_classes = sorted({e.target, *e.contrast}) if e.contrast else list(e.class_subset) or None
        draws = PRNGKey.of_images(e.seed, "check", self.inputs.cpu())
        return measure(
            self.view, self.inputs, e.image, self.map[0], e.target, draws,
            compare_classes=compare_classes, class_subset=e.class_subset or None, memory_gb=self.memory,
            on_progress=self.on_progress,
        )  # fmt: skip

    def _same_model(self) -> None:
        e = self.explanation
        if e.target is None:
            raise TargetError(f"a check asks about a class, but this explanation is of the function {e.label}")
        said = ((e.target, e.label, e.probability), (e.prediction.target, e.prediction.label, e.prediction.probability))
        for index, label, then in said:
            if index >= len(self.chances):
                raise TargetError(f"{self.view.name} has no class {index}: it is not the model of this explanation")
            now = float(self.chances[index])
            if then is None or abs(now - then) > _OTHER_MODEL:
                raise ModelError(
                    f"{self.view.name} gives {label} {now:.3f}, the explanation has {then:.3f}: "
                    "it is of another model, or of a tensor that its picture does not hold (give inputs=)"
                )


class _Counted:
    """Turns inputs that were run into a share of what there is."""

    def __init__(self, progress: Progress, total: float) -> None:
        self.progress, self.total, self.done = progress, max(1, round(total)), 0

    def __call__(self, inputs: int) -> None:
        self.done = min(self.total, self.done + inputs)
        self.progress(self.done, self.total)


def agreement(one: Tensor, other: Tensor) -> float:
    """Return Spearman's rank correlation of two maps; 0 where one is flat or not finite."""
    pair = [each.double().reshape(1, *each.shape[-2:]).numpy() for each in (one, other)]
    return float(spearman(*pair)[0])


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _SAME * other.abs().max())


def _at_least(value: float, limits: tuple[float, float]) -> str:
    value = round(value, 2)  # as it is printed
    return "good" if value >= limits[0] else "weak" if value >= limits[1] else "bad"


def _at_most(value: float, limits: tuple[float, float]) -> str:
    value = round(value, 2)
    return "good" if value <= limits[0] else "weak" if value <= limits[1] else "bad"
