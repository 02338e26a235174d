"""What was found out: about an explanation (a check-up), about a model (a diagnosis). One finding for each test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["VERDICTS", "Checkup", "Finding"]

VERDICTS = ("good", "weak", "bad", "-")
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
        return dict(zip(VERDICTS, words, strict=False)).get(self.verdict, self.name)


@dataclass(frozen=True)
class Checkup:
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
    def from_json(cls, told: Mapping[str, Any]) -> Checkup:
        """Read what ``to_json`` gave."""
        return cls(told["verdict"], told["sentence"], tuple(Finding(**test) for test in told["tests"]))
