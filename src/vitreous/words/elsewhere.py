"""Names that people know from papers and other libraries: what they are called here, or why they are not here."""

from __future__ import annotations

from vitreous.words.defaults import STEPS, ladder

__all__ = ["MEANT", "PLANNED", "folded"]

MEANT = {
    "smoothgrad": "smooth(saliency)",
    "attentionrollout": "rollout",
    "gradientrollout": "grad_rollout",
    "inputxgrad": "input_x_gradient",
    "gradientxinput": "input_x_gradient",
    "vanillagradient": "saliency",
    "gradcamplusplus": "gradcam_pp",
    **{step: ladder(step) for step in STEPS},
}
"""By folded name: the spelling that is meant. Steps of the ladder are those of most models."""

_PERTURBATION = ("rise", "lime", "shap", "kernelshap", "gradientshap", "occlusion", "featureablation", "vitcx")
_PROPAGATION = ("lrp", "attnlrp", "cplrp", "partiallrp", "transatt", "transformerattribution")
_PATH = ("guidedig", "blurig")
PLANNED = frozenset(_PERTURBATION + _PROPAGATION + _PATH)
"""By folded name: methods that are planned."""


def folded(name: str) -> str:
    """Return a name as it sounds: case, hyphens, underscores and spaces left out, ``++`` read as ``pp``."""
    return "".join(letter for letter in name.lower().replace("++", "pp") if letter not in "-_ \t")
