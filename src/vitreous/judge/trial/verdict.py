"""From the scores of one metric to its verdict: which steps of the ladder it sees, and how well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitreous.judge.trial.ladder import CENTRE, DEGRADED, MISPLACED, MIXES, ORACLE, RANDOM
from vitreous.judge.trial.statistics import (
    Scores,
    agreement,
    error_rate,
    krippendorff,
    mid_ranks,
    order_agreement,
    smallest_difference,
    truth_correlation,
)
from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array
from vitreous.results.trial import Reliability, Step, Tried

__all__ = ["CORE", "GROUPS", "PAIRS", "STEPS", "judged", "set_aside"]

GROUPS: Mapping[str, tuple[str, ...]] = {
    "oracle": (ORACLE,),
    "worse oracles": DEGRADED,
    "centre": (CENTRE,),
    "random": RANDOM,
    "misplaced": (MISPLACED,),
}
CORE = tuple(name for names in GROUPS.values() for name in names)
STEPS = (
    ("oracle", "worse oracles"),
    ("worse oracles", "centre"),
    ("centre", "random"),
    ("worse oracles", "misplaced"),
)
"""What a metric must see, the truer group first. Without the last, one that likes few pixels would pass."""
PAIRS = tuple((one, two) for better, worse in STEPS for one in GROUPS[better] for two in GROUPS[worse])
"""Every pair of maps from these groups, the truer one first."""

Parts = Mapping[str, Array]
"""What a metric has of every image ``[n, P]``, by map."""


def judged(
    label: str,
    metric: Metric,
    seeds: Sequence[Parts],
    substrates: Mapping[str, Parts],
    samples: int,
) -> Tried:
    """Return the verdict on a metric from its parts in every seed (the first with all maps) and on other substrates."""
    core = [{name: each[name] for name in CORE} for each in seeds]
    scores = Scores.of(metric, core, samples)
    mixed = Scores.of(metric, [{name: seeds[0][name] for name in MIXES}], samples)
    each = [Scores.of(metric, [one], 1) for one in core]
    others = [Scores.of(metric, [parts], 1) for parts in substrates.values()]
    required = [_step(scores, better, worse, GROUPS[better], GROUPS[worse], required=True) for better, worse in STEPS]
    told = [_step(scores, ORACLE, name, (ORACLE,), (name,)) for name in DEGRADED]
    told += [_step(scores, name, CENTRE, (name,), (CENTRE,)) for name in DEGRADED]
    verdict, why = _verdict(required, told)
    smallest, share = smallest_difference(mixed, MIXES)
    truth, around, whole = truth_correlation(mixed, MIXES, samples)
    sign = 1 if metric.higher_is_better else -1
    return Tried(
        label,
        metric.info.family,
        verdict,
        why,
        scores.count,
        metric.higher_is_better,
        (*required, *told),
        {name: sign * value for name, value in {**scores.whole, **mixed.whole}.items()},
        error_rate(scores, PAIRS),
        krippendorff(np.array([mid_ranks(row) for row in scores.table(CORE)]).reshape(-1, len(CORE))),
        _reliability(each, tuple(f"seed {number}" for number in range(len(each)))),
        _reliability([each[0], *others], ("its own", *substrates)),
        smallest,
        share,
        truth,
        around.low,
        around.high,
        whole,
    )


def set_aside(label: str, metric: Metric, why: str) -> Tried:
    """Return the row of a metric that was not tried: marked, not hidden."""
    return Tried(label, metric.info.family, "not tried", why, higher_is_better=metric.higher_is_better)


def _step(
    scores: Scores, better: str, worse: str, ones: Sequence[str], others: Sequence[str], required: bool = False
) -> Step:
    gap, around = scores.difference(ones, others)
    return Step(better, worse, gap, around.low, around.high, required)


def _verdict(required: Sequence[Step], told: Sequence[Step]) -> tuple[str, str]:
    wrong = [step for step in required if step.holds is False]
    unseen = [step for step in required if step.holds is None]
    if wrong:
        return "fails", "; ".join(f"ranks {step.worse} above {step.better}" for step in wrong)
    if unseen:
        return "blind", "; ".join(f"cannot tell {step.better} from {step.worse}" for step in unseen)
    turned = [f"{step.worse} above {step.better}" for step in told if step.holds is False]
    return "passes", "every step seen" + (f", though it ranks {', '.join(turned)}" if turned else "")


def _reliability(scores: Sequence[Scores], runs: tuple[str, ...]) -> Reliability | None:
    if len(scores) < 2:
        return None
    return Reliability(order_agreement(scores, CORE), agreement(scores, CORE), runs)
