"""What was found out: about an explanation (a check-up), about a model (a diagnosis). One finding for each test.

The outcome of a trial of metrics: what each of them is worth where the truth is known.

How far methods agree: the mean similarity of their maps of the same images, for every pair of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import Interval
from vitreous.metrics.ranking import Array
from vitreous.metrics.verdicts import VERDICTS
from vitreous.results.storage import plain, record, write
from vitreous.results.table import aligned, comma_separated, html_rows, markdown
from vitreous.viz import plots as figures

__all__ = [
    "Agreement",
    "CheckResult",
    "Finding",
    "Reliability",
    "AGREEMENT_SCHEMA",
    "TRIAL_SCHEMA",
    "Step",
    "MetaEvaluation",
    "Tried",
    "CHECK_VERDICTS",
]

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


@dataclass(frozen=True)
class Finding:
    """One test: its ``name``, its ``verdict``, a ``sentence``, and the ``numbers`` behind it.

    The verdict is one of ``VERDICTS``, or about a model ``"ok"``, ``"failed"`` or ``"-"`` where it does not apply.
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

    ``verdict`` is the worst of the tests that apply: ``"good"``, ``"weak"`` or ``"bad"``; ``sentence`` says why.
    """

    verdict: str
    sentence: str
    tests: tuple[Finding, ...]

    def __getitem__(self, name: str) -> Finding:
        """Return a test by its name."""
        return {test.name: test for test in self.tests}[name]

    def __str__(self) -> str:
        widest = max((len(test.name) for test in self.tests), default=0)
        lines = [f"  {test.name:<{widest}}  {test.verdict:<4}  {test.sentence}" for test in self.tests]
        return "\n".join([f"{self.verdict}: {self.sentence}", *lines])

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        tests = [{**asdict(test), "numbers": dict(test.numbers)} for test in self.tests]
        return {"verdict": self.verdict, "sentence": self.sentence, "tests": tests}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CheckResult:
        """Read what ``to_json`` gave."""
        return cls(told["verdict"], told["sentence"], tuple(Finding(**test) for test in told["tests"]))


TRIAL_SCHEMA = "vitreous.meta_evaluate/1"
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
class MetaEvaluation:
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
    def joined(cls, trials: Sequence[MetaEvaluation]) -> MetaEvaluation:
        """Return several trials of the same scenes as one; a metric that was tried twice counts as it was the last."""
        if not trials:
            raise VitreousError("there is no trial to join")
        first = trials[0]
        for other in trials[1:]:
            for name in _SAME:
                one, two = (each.plan.get(name, getattr(each, name, None)) for each in (first, other))
                if one != two:
                    raise VitreousError(f"trials of different {name} cannot be joined: {one} and {two}")
        rows = {row.metric: row for trial in trials for row in trial.tried}
        total = {name: sum(trial.plan.get(name, 0) for trial in trials) for name in ("states", "seconds")}
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
            "schema": TRIAL_SCHEMA,
            "scenes": self.scenes,
            "left_out": self.left_out,
            "closeness": plain(dict(self.closeness)),
            "plan": plain(dict(self.plan)),
            "tried": [plain(asdict(each)) for each in self.tried],
        }

    @classmethod
    def load(cls, path: str | Path) -> MetaEvaluation:
        """Read a trial that was saved."""
        with record(path, TRIAL_SCHEMA, "trial") as told:
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
    seeds, baselines = (_digits(r.order) if r is not None else "-" for r in (each.over_seeds, each.over_substrates))
    shares = (_percent(each.error_rate), truth, _percent(each.smallest_share))
    return [each.metric, each.verdict, *shares, seeds, baselines, _digits(each.alpha), each.why]


def _digits(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _with_nan(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _NAN if value is None else value for name, value in told.items()}


AGREEMENT_SCHEMA = "vitreous.agreement/1"


@dataclass(frozen=True, eq=False)
class Agreement:
    """A matrix of mean similarities ``[M, M]`` with the ends of their 95 % bootstrap intervals.

    ``per_image`` ``[n, M, M]`` is what every image has to say, NaN where one of the maps is not finite; ``None`` for
    similarities of whole sets of maps (CKA). ``by`` names the similarity, ``grid`` where the maps were compared.
    """

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
        """Return the mean similarity of two methods."""
        return float(self.matrix[self._at(pair)])

    def interval(self, one: str, other: str) -> Interval:
        """Return the interval of that mean."""
        at = self._at((one, other))
        return Interval(float(self.low[at]), float(self.high[at]))

    def _at(self, pair: tuple[str, str]) -> tuple[int, int]:
        for word in pair:
            if word not in self.methods:
                raise VitreousError(f"no method {word!r} in this agreement{nearest(word, self.methods)}")
        return self.methods.index(pair[0]), self.methods.index(pair[1])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        arrays = {"mean": self.matrix, "low": self.low, "high": self.high}
        return {
            "schema": AGREEMENT_SCHEMA,
            "plan": dict(self.plan),
            "images": list(self.images),
            "methods": list(self.methods),
            "by": self.by,
            "grid": self.grid,
            **{name: plain(array) for name, array in arrays.items()},
            "per_image": None if self.per_image is None else plain(self.per_image),
        }

    @classmethod
    def load(cls, path: str | Path) -> Agreement:
        """Read an agreement that was saved as ``.json``."""
        with record(path, AGREEMENT_SCHEMA, "agreement") as data:
            shape = (len(data["methods"]),) * 2
            mean, low, high = (np.array(data[name], np.float64).reshape(shape) for name in ("mean", "low", "high"))
            each = data["per_image"]
            per_image = None if each is None else np.array(each, np.float64).reshape(len(data["images"]), *shape)
            names = tuple(data["methods"]), tuple(data["images"]), data["by"], data["grid"]
            return cls(*names, mean, low, high, per_image, data["plan"])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything as ``.json``, or the pairs as ``.csv``, whole or not at all."""
        return write(path, {".json": self._json_text, ".csv": self.to_csv}, overwrite=overwrite)

    def _json_text(self) -> str:
        return json.dumps(self.to_json(), allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return one line per pair of methods: mean, interval."""
        numbers = np.stack([self.matrix, self.low, self.high], axis=-1)
        rows = [
            [one, other, *("" if math.isnan(value) else repr(value) for value in numbers[i, j].tolist())]
            for i, one in enumerate(self.methods)
            for j, other in enumerate(self.methods)
            if i < j
        ]
        return comma_separated([["one", "other", "mean", "low", "high"], *rows])

    def plot(self, *, path: str | Path | None = None, overwrite: bool = False, width: str | float = "column") -> Any:
        """Return the matrix as a matplotlib figure; with a path, also write it."""
        note = f"{self.by} of maps on the {self.grid} grid, {len(self.images)} images."
        figure = figures.matrix(self.matrix, self.methods, "Agreement", note, width=width)
        if path is not None:
            figures.save(figure, path, overwrite=overwrite)
        return figure

    def to_markdown(self) -> str:
        """Return the matrix in Markdown."""
        return markdown(self._rows())

    def __str__(self) -> str:
        return aligned(self._rows())

    def __repr__(self) -> str:
        return f"Agreement of {self._size}\n{self}"

    def _repr_html_(self) -> str:
        return html_rows(self._rows(), self._size)

    @property
    def _size(self) -> str:
        return f"{len(self.methods)} methods by {self.by} on the {self.grid} grid, {len(self.images)} pictures"

    def _rows(self) -> list[list[str]]:
        cells = [["-" if math.isnan(value) else f"{value:.3f}" for value in row] for row in self.matrix.tolist()]
        return [["", *self.methods], *([name, *row] for name, row in zip(self.methods, cells, strict=True))]
