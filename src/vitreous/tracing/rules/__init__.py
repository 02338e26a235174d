"""Rules and composites of rules: what flows backward. The forward values stay what they were."""

from vitreous.tracing.rules.base import GRADIENT, AttentionRule, Call, Composite, Flows, Rule
from vitreous.tracing.rules.gradient import LINEARIZED

__all__ = ["GRADIENT", "LINEARIZED", "AttentionRule", "Call", "Composite", "Flows", "Rule"]
