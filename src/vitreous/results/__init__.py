"""Results: what is given back. They print and show themselves, and can be saved and loaded."""

from vitreous.results.comparison import Archive, Comparison, to_html
from vitreous.results.diagnostics import Agreement, CheckResult, Diagnosis, Finding, MetaEvaluation
from vitreous.results.explanation import Explanation
from vitreous.results.funnybirds import FunnyBirdsResult
from vitreous.results.storage import ClassProbability, ExplanationRequest, Origin, ResultIdentity
from vitreous.results.table import ScoreTable

__all__ = [
    "Agreement",
    "Archive",
    "CheckResult",
    "ClassProbability",
    "Comparison",
    "Diagnosis",
    "Explanation",
    "ExplanationRequest",
    "Finding",
    "FunnyBirdsResult",
    "ResultIdentity",
    "MetaEvaluation",
    "Origin",
    "ScoreTable",
    "to_html",
]
