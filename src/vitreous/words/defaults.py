"""What is meant where nothing is said: the same words in Python and on the command line."""

from __future__ import annotations

__all__ = ["BASELINES", "COMPARED", "JUDGED", "METHOD", "METRICS", "MODEL"]

MODEL = "timm/vit_base_patch16_224"
METHOD = "logprob(plus(decompx))"
"""The most faithful of the methods that take a few passes, by measurement; see the manual."""
COMPARED = ("rollout", "generic", "gradcam", "skipplus(decompx)", "vtranm", METHOD)
JUDGED = (METHOD, "generic")
METRICS = ("insdel", "insertion", "deletion", "srg", "aopc", "lodds")
BASELINES = ("random", "constant", "centre")
"""What stands in every table, so that a number can be held against something."""
