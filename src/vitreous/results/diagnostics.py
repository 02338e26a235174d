"""What tests say about an explanation, a model, the metrics and the agreement of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import Interval
from vitreous.metrics.ranking import Array
from vitreous.metrics.verdicts import VERDICTS
from vitreous.results.storage import (
    ResultBase,
    comma_separated,
    estimate_text,
    from_plain,
    html_table,
    number_text,
    to_plain,
)
from vitreous.viz import plots

CHECK_VERDICTS = ("good", "weak", "bad", "-")
"""Of an explanation, from the best to the worst; ``"-"`` where a test does not apply."""
_WORDS = {
    "faithfulness": ("faithful", "doubtful", "unfaithful"),
    "stability": ("repeatable", "somewhat unstable", "unstable"),
    "samples": ("enough", "few", "too few"),
    "runner-up": ("specific", "hardly specific", "not specific"),
    "head": ("learned", "partly learned", "hardly learned"),
}
"""What a good, a weak and a bad finding is called."""
_NAN = float("nan")


@dataclass(frozen=True)
class Finding:
    """One test: its ``name``, its ``verdict``, a ``sentence``, and the ``numbers`` behind it.

    The verdict is one of ``CHECK_VERDICTS``, or about a model ``"ok"``, ``"failed"`` or ``"-"`` (does not apply).
    """

    name: str
    verdict: str
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The verdict in a word that says what was tested; the name where there is none."""
        words = _WORDS.get(self.name, ())
        return dict(zip(CHECK_VERDICTS, words, strict=False)).get(self.verdict, self.name)


@dataclass(frozen=True)
class CheckResult:
    """What cheap tests say about one explanation: they can condemn it, not acquit it.

    Made by ``vt.check``.

    Parameters
    ----------
    verdict : {"good", "weak", "bad"}
        The worst of the tests that apply.
    sentence : str
        Why, in words.
    tests : tuple of Finding
        ``faithfulness``, ``stability``, ``samples``, ``runner-up`` and ``head``; by name, ``result["head"]``.

    Examples
    --------
    >>> result = vt.check(vt.explain(model, image, "rollout"))
    >>> result["runner-up"].sentence
    'the method knows no class: the map would be the same for any'
    """

    verdict: str
    sentence: str
    tests: tuple[Finding, ...]

    def __getitem__(self, name: str) -> Finding:
        return {test.name: test for test in self.tests}[name]

    def __str__(self) -> str:
        widest = max((len(test.name) for test in self.tests), default=0)
        lines = [f"  {test.name:<{widest}}  {test.verdict:<4}  {test.sentence}" for test in self.tests]
        return "\n".join([f"{self.verdict}: {self.sentence}", *lines])

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dict(to_plain(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckResult:
        """Return the result whose ``to_json`` this is."""
        result: CheckResult = from_plain(cls, data)
        return result


@dataclass(frozen=True)
class Diagnosis:
    """Whether a model is understood, and which methods apply to it.

    Made by ``vt.diagnose``; prints in a few lines and shows its tables in a notebook.

    Parameters
    ----------
    model : str
        The name of the model.
    checks : tuple of Finding
        What was found about the model.
    methods : tuple of Finding
        One for each method; ``"-"`` where it was not tried.

    Examples
    --------
    >>> vt.diagnose(model).healthy
    True
    """

    model: str
    checks: tuple[Finding, ...]
    methods: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether every check that applies holds."""
        return all(check.verdict != "failed" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The model and what to think of it, in one line."""
        return f"{self.model}: {'healthy' if self.healthy else 'some checks failed'}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "healthy": self.healthy}

    def __repr__(self) -> str:
        passed = sum(check.verdict == "ok" for check in self.checks)
        failed = [f"  failed: {check.name}: {check.sentence}" for check in self.checks if check.verdict == "failed"]
        counts = f"  {passed} of {len(self.checks)} checks ok, {self._method_counts}"
        return "\n".join([self.verdict, counts, *failed])

    def _repr_html_(self) -> str:
        tables = [("check", self.checks, self.verdict), ("method", self.methods, self._method_counts)]
        return "".join(
            html_table([[head, "", ""], *([row.name, row.verdict, row.sentence] for row in findings)], caption)
            for head, findings, caption in tables
            if findings
        )

    @property
    def _method_counts(self) -> str:
        verdicts = [method.verdict for method in self.methods]
        count = verdicts.count
        return f"{count('ok')} methods apply, {count('failed')} do not, {count('-')} were not tried"


# -- metrics -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """By how much the ``better`` maps score above the ``worse`` ones, with a 95 % interval.

    Up is better, whatever the metric's direction. ``required`` steps decide the verdict; the others are reported.
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
class MetricAssessment:
    """What meta-evaluation found out about one metric.

    ``error_rate``: share of images and pairs of neighbouring maps in the wrong order, ties half. ``alpha``:
    Krippendorff's, images as raters of maps. ``smallest`` difference seen with 500 images four times in five, in the
    metric's units, and ``smallest_share`` of the way from oracle to random. ``truth``: mean rank correlation with the
    share of truth in a mix, its interval, and ``truth_overall`` that of the scores of all images.
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
    over_baselines: Reliability | None = None
    smallest: float = _NAN
    smallest_share: float = _NAN
    truth: float = _NAN
    truth_low: float = _NAN
    truth_high: float = _NAN
    truth_overall: float = _NAN

    def row(self) -> list[str]:
        """Return it as a row of the printed table."""
        truth = estimate_text(self.truth, (self.truth_low, self.truth_high))
        orders = (number_text(run.order) if run is not None else "-" for run in (self.over_seeds, self.over_baselines))
        shares = (number_text(self.error_rate, ".1%"), truth, number_text(self.smallest_share, ".1%"))
        return [self.metric, self.verdict, *shares, *orders, number_text(self.alpha), self.why]


@dataclass(frozen=True, eq=False, repr=False)
class MetaEvaluation(ResultBase):
    """Metrics in rows: verdict, errors, correlation with the truth, power and reliability.

    Made by ``vt.meta_evaluate``; ``result["insertion"]`` is the assessment of one metric.

    Parameters
    ----------
    assessments : tuple of MetricAssessment
        One for each metric.
    scenes : int
        How many scenes were scored.
    left_out : int
        How many were not, since nothing in them matters to the model.
    closeness : dict of float
        The correlation of every map with the oracle.
    plan : dict
        How it was made.

    Examples
    --------
    >>> found = vt.meta_evaluate("pointing_game", scenes=3, seeds=1, baselines=0, n_bootstrap=50)
    >>> found["pointing_game"].images
    3
    """

    schema = "vitreous.meta_evaluate/1"
    noun = "meta-evaluation"

    assessments: tuple[MetricAssessment, ...]
    scenes: int
    left_out: int
    closeness: Mapping[str, float] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, metric: str) -> MetricAssessment:
        by_name = {assessment.metric: assessment for assessment in self.assessments}
        if metric not in by_name:
            raise VitreousError(f"no metric {metric!r} in this meta-evaluation{nearest(metric, by_name)}")
        return by_name[metric]

    @property
    def summary(self) -> str:
        """How many metrics and scenes there are."""
        return f"{len(self.assessments)} metrics on {self.scenes} scenes"

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.reading}"

    @property
    def reading(self) -> str:
        """What the table says, in a few words."""
        verdicts = [assessment.verdict for assessment in self.assessments]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts)
        left_out = f" ({self.left_out} more left out, where nothing matters)" if self.left_out else ""
        return (
            f"{self.scenes} scenes{left_out}: {counts}. passes: oracle > worse oracles > centre > random, and worse "
            "oracles > misplaced ones, each with its 95 % interval above zero. fails: one of these steps is turned "
            "round. blind: one cannot be seen.\n"
            "errors: pairs of maps in the wrong order. truth: rank correlation with how much of a map is true. sees: "
            "smallest difference seen with 500 images, of that between oracle and random."
        )

    def rows(self) -> list[list[str]]:
        """Return the table as printed, failures first."""
        head = ["metric", "verdict", "errors", "truth", "sees", "seeds", "baselines", "alpha", "why"]
        order = sorted(self.assessments, key=lambda assessment: VERDICTS.index(assessment.verdict))
        return [head, *(assessment.row() for assessment in order)]


# -- methods -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Agreement(ResultBase):
    """How alike the maps of methods are: a symmetric matrix of mean similarities with 95 % bootstrap intervals.

    Made by ``vt.agreement``; ``result["ixg", "rollout"]`` is the mean similarity of two methods.

    Parameters
    ----------
    methods : tuple of str
        Names of the ``M`` methods.
    images : tuple of str
        Names of the ``n`` images.
    by : str
        The similarity.
    grid : {"token", "pixel"}
        Where the maps were compared.
    matrix, low, high : array
        Means and the ends of their intervals, ``[M, M]``.
    per_image : array, optional
        What every image has to say, ``[n, M, M]``: NaN where one of the maps is not finite; ``None`` for similarities
        of whole sets of maps (CKA).
    plan : dict
        How it was made.

    Examples
    --------
    >>> similarity = vt.agreement(model, images, ["ixg", "rollout"], n_bootstrap=50)
    >>> similarity["ixg", "ixg"]
    1.0
    """

    schema = "vitreous.agreement/1"
    noun = "agreement"

    methods: tuple[str, ...]
    images: tuple[str, ...]
    by: str
    grid: str
    matrix: Array
    low: Array
    high: Array
    per_image: Array | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, pair: tuple[str, str]) -> float:
        return float(self.matrix[self._index(pair)])

    def interval(self, one: str, other: str) -> Interval:
        """Return the interval of the mean similarity of two methods."""
        index = self._index((one, other))
        return Interval(float(self.low[index]), float(self.high[index]))

    def _index(self, pair: tuple[str, str]) -> tuple[int, int]:
        for name in pair:
            if name not in self.methods:
                raise VitreousError(f"no method {name!r} in this agreement{nearest(name, self.methods)}")
        return self.methods.index(pair[0]), self.methods.index(pair[1])

    @property
    def summary(self) -> str:
        """How many methods and images there are, and how they were compared."""
        return f"{len(self.methods)} methods by {self.by} on the {self.grid} grid, {len(self.images)} images"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        data = super().to_json()
        return {**data, "mean": data.pop("matrix")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Agreement:
        """Return the agreement whose ``to_json`` this is."""
        return super().from_json({"matrix" if name == "mean" else name: item for name, item in data.items()})

    def to_csv(self) -> str:
        """Return one line per pair of methods: mean, interval."""
        numbers = np.stack([self.matrix, self.low, self.high], axis=-1)
        rows = [
            [one, other, *numbers[i, j].tolist()]
            for i, one in enumerate(self.methods)
            for j, other in enumerate(self.methods)
            if i < j
        ]
        return comma_separated([["one", "other", "mean", "low", "high"], *rows])

    def plot(self, *, path: str | Path | None = None, overwrite: bool = False, width: str | float = "column") -> Any:
        """Return the matrix as a matplotlib figure.

        Parameters
        ----------
        path : str or Path, optional
            Also write it here, as ``.svg``, ``.pdf`` or ``.png``.
        overwrite : bool, default False
            Replace what is there.
        width : str or float, default "column"
            ``"column"``, ``"page"`` or millimetres.
        """
        note = f"{self.by} of maps on the {self.grid} grid, {len(self.images)} images."
        figure = plots.matrix(self.matrix, self.methods, "Agreement", note, width=width)
        if path is not None:
            plots.save(figure, path, overwrite=overwrite)
        return figure

    def rows(self) -> list[list[str]]:
        """Return the matrix as printed."""
        cells = [[number_text(value, ".3f") for value in row] for row in self.matrix.tolist()]
        return [["", *self.methods], *([name, *row] for name, row in zip(self.methods, cells, strict=True))]
