"""The outcome of a trial of metrics: what each of them is worth where the truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.verdicts import VERDICTS
from vitreous.results.formats import aligned, html_rows, markdown
from vitreous.results.records import plain, record, write

__all__ = ["SCHEMA", "Reliability", "Step", "Trial", "Tried"]

SCHEMA = "vitreous.trial/1"
_NAN = float("nan")


@dataclass(frozen=True)
class Step:
    """One rung of the ladder: by how much the ``better`` maps score above the ``worse``, with a 95 % interval.

    Up is better, whatever the metric's direction. ``required`` steps decide the verdict; the others are told.
    """

    better: str
    worse: str
    mean: float
    low: float
    high: float
    required: bool = False

    @property
    def holds(self) -> bool | None:
        """True if the interval lies above zero, False if below, None if zero lies in it."""
        return True if self.low > 0 else False if self.high < 0 else None

    def __str__(self) -> str:
        sign = {True: ">", False: "<", None: "~"}[self.holds]
        return f"{self.better} {sign} {self.worse} ({self.mean:+.3g} [{self.low:.3g}, {self.high:.3g}])"


@dataclass(frozen=True)
class Reliability:
    """Rank correlation between runs that should say the same: of the maps' order, and image by image."""

    order: float
    images: float
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tried:
    """What the trial found out about one metric.

    ``error_rate``: share of images and pairs of neighbouring maps in the wrong order, ties half. ``alpha``:
    Krippendorff's, images as raters of maps. ``smallest`` difference seen with 500 images four times in five, in the
    metric's units, and ``smallest_share`` of the way from oracle to random. ``truth``: mean rank correlation with the
    known share of truth in a mix, its interval, and ``truth_whole`` that of the scores of all images.
    """

    metric: str
    family: str
    verdict: str
    why: str
    images: int = 0
    higher_is_better: bool = True
    steps: tuple[Step, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    error_rate: float = _NAN
    alpha: float = _NAN
    over_seeds: Reliability | None = None
    over_substrates: Reliability | None = None
    smallest: float = _NAN
    smallest_share: float = _NAN
    truth: float = _NAN
    truth_low: float = _NAN
    truth_high: float = _NAN
    truth_whole: float = _NAN

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Tried:
        """Read what ``to_json`` gave."""
        given: dict[str, Any] = {**told, **{name: _NAN for name in _NUMBERS if told[name] is None}}
        given["steps"] = tuple(Step(**_with_nan(step)) for step in told["steps"])
        given["scores"] = _with_nan(told["scores"])
        for name in ("over_seeds", "over_substrates"):
            row = told[name]
            given[name] = row and Reliability(**{**_with_nan(row), "runs": tuple(row["runs"])})
        return cls(**given)


_SAME = ("scenes", "left_out", "model", "value", "start", "shortcut", "seeds", "substrates", "precision", "strengths")
_NUMBERS = tuple(name for name, each in Tried.__dataclass_fields__.items() if each.default is _NAN)


@dataclass(frozen=True, eq=False)
class Trial:
    """Metrics in rows: verdict, errors, correlation with the truth, power and reliability. Failures are told first.

    ``closeness`` is the correlation of every map of the ladder with the oracle; ``plan`` records how it was made.
    """

    tried: tuple[Tried, ...]
    scenes: int
    left_out: int
    closeness: Mapping[str, float] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, metric: str) -> Tried:
        """Return what was found out about a metric."""
        found = {each.metric: each for each in self.tried}
        if metric not in found:
            raise VitreousError(f"no metric {metric!r} in this trial{nearest(metric, found)}")
        return found[metric]

    @classmethod
    def joined(cls, trials: Sequence[Trial]) -> Trial:
        """Return several trials of the same scenes as one; a metric that was tried twice counts as it was the last."""
        if not trials:
            raise VitreousError("there is no trial to join")
        first = trials[0]
        for other in trials[1:]:
            for name in _SAME:
                one, two = (each.plan.get(name, getattr(each, name, None)) for each in (first, other))
                if one != two:
                    raise VitreousError(f"trials of different {name} cannot be joined: {one} and {two}")
        rows = {row.metric: row for each in trials for row in each.tried}
        total = {name: sum(each.plan.get(name, 0) for each in trials) for name in ("states", "seconds")}
        return cls(tuple(rows.values()), first.scenes, first.left_out, first.closeness, {**first.plan, **total})

    def verdicts(self) -> dict[str, Any]:
        """Return what ``vitreous.metrics.verdicts`` keeps of a trial: a line for each metric."""
        about = {name: self.plan.get(name) for name in ("model", "seeds")}
        rows = {
            each.metric: {
                "verdict": each.verdict,
                "why": each.why,
                "images": each.images,
                **about,
                "error_rate": plain(each.error_rate),
                "truth": plain(each.truth),
                "smallest_share": plain(each.smallest_share),
            }
            for each in self.tried
        }
        return {"schema": "vitreous.verdicts/1", "versions": self.plan.get("versions"), "metrics": rows}

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        return {
            "schema": SCHEMA,
            "scenes": self.scenes,
            "left_out": self.left_out,
            "closeness": plain(dict(self.closeness)),
            "plan": plain(dict(self.plan)),
            "tried": [plain(asdict(each)) for each in self.tried],
        }

    @classmethod
    def load(cls, path: str | Path) -> Trial:
        """Read a trial that was saved."""
        with record(path, SCHEMA, "trial") as told:
            rows = tuple(Tried.from_json(each) for each in told["tried"])
            return cls(rows, told["scenes"], told["left_out"], _with_nan(told["closeness"]), told["plan"])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the trial as ``.json``, whole or not at all."""
        return write(path, {".json": self._json_text}, overwrite=overwrite)

    def _json_text(self) -> str:
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return the table as printed, in Markdown."""
        return markdown(self._printed())

    def __str__(self) -> str:
        return f"{aligned(self._printed())}\n\n{self.reading}"

    def __repr__(self) -> str:
        return f"Trial of {len(self.tried)} metrics on {self.scenes} scenes\n{self}"

    def _repr_html_(self) -> str:
        return html_rows(self._printed(), f"{len(self.tried)} metrics on {self.scenes} scenes")

    @property
    def reading(self) -> str:
        """What the table says, in a few words."""
        counts = {verdict: sum(each.verdict == verdict for each in self.tried) for verdict in VERDICTS}
        found = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n)
        left = f" ({self.left_out} more left out, where nothing matters)" if self.left_out else ""
        return (
            f"{self.scenes} scenes{left}: {found}. passes: oracle > worse oracles > centre > random, and worse oracles "
            "> misplaced ones, each with its 95 % interval above zero. fails: one of these steps is turned round. "
            "blind: one cannot be seen.\n"
            "errors: pairs of maps in the wrong order. truth: rank correlation with how much of a map is true. sees: "
            "smallest difference seen with 500 images, of that between oracle and random."
        )

    def _printed(self) -> list[list[str]]:
        head = ["metric", "verdict", "errors", "truth", "sees", "seeds", "substrates", "alpha", "why"]
        order = sorted(self.tried, key=lambda each: VERDICTS.index(each.verdict))
        return [head, *(_row(each) for each in order)]


def _row(each: Tried) -> list[str]:
    truth = "-" if math.isnan(each.truth) else f"{each.truth:.2f} [{each.truth_low:.2f}, {each.truth_high:.2f}]"
    seeds, substrates = (_digits(r.order) if r is not None else "-" for r in (each.over_seeds, each.over_substrates))
    shares = (_percent(each.error_rate), truth, _percent(each.smallest_share))
    return [each.metric, each.verdict, *shares, seeds, substrates, _digits(each.alpha), each.why]


def _digits(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _with_nan(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _NAN if value is None else value for name, value in told.items()}
