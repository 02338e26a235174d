"""Rules: tables *operation to rule* that say what flows backward. The forward values stay what they were."""

from vitreous.tracing.rules.attention import Attend, AttentionCall, weights
from vitreous.tracing.rules.base import GRADIENT, AttentionRule, Call, Composite, Flows, Rule
from vitreous.tracing.rules.gradient import LINEARIZED

__all__ = [
    "LINEARIZED",
    "GRADIENT",
    "Attend",
    "AttentionCall",
    "AttentionRule",
    "Call",
    "Flows",
    "Rule",
    "Composite",
    "weights",
]
