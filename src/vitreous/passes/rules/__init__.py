"""Rules: tables *operation to rule* that say what flows backward. The forward values stay what they were."""

from vitreous.passes.rules.attend import Attend, AttentionCall, weights
from vitreous.passes.rules.frozen import FROZEN
from vitreous.passes.rules.table import PLAIN, AttentionRule, Call, Flows, Rule, Rules

__all__ = ["FROZEN", "PLAIN", "Attend", "AttentionCall", "AttentionRule", "Call", "Flows", "Rule", "Rules", "weights"]
