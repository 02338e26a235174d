"""Results: what is given back. They print and show themselves, and can be saved and loaded."""

from vitreous.results.archive import Archive
from vitreous.results.comparison import Comparison
from vitreous.results.diagnostics import CheckResult, Finding
from vitreous.results.explanation import Explanation, Origin, Prediction
from vitreous.results.storage import Identity, Question
from vitreous.results.table import ScoreTable

__all__ = [
    "Archive",
    "CheckResult",
    "Comparison",
    "Explanation",
    "Finding",
    "Identity",
    "Origin",
    "Prediction",
    "Question",
    "ScoreTable",
]
