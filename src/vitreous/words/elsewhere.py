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
    "gradientinput": "input_x_gradient",
    "gradxinput": "input_x_gradient",
    "gradcamplusplus": "gradcam_pp",
    "smoothgradsquared": "smooth(saliency, kind=squares)",
    "squaregrad": "smooth(saliency, kind=squares)",
    "vargrad": "smooth(saliency, kind=variance)",
    "guidedintegratedgradients": "guided_ig",
    "blurintegratedgradients": "blur_ig",
    "gradshap": "gradient_shap",
    "shap": "kernel_shap",
    "limeimage": "lime",
    "featureablation": "occlusion",
    "slidingwindow": "occlusion",
    "hsicattributionmethod": "hsic",
    "attentionmanipulation": "atman",
    "layerwiserelevancepropagation": "lrp",
    "transformerattribution": "transatt",
    "transitionattentionmaps": "tam",
    "beyondintuition": "bt_h",
    "iteratedintegratedattributions": "iia",
    **{step: ladder(step) for step in STEPS},
}
"""By folded name: the spelling that is meant. Steps of the ladder are those of most models."""

PLANNED = frozenset({"pami"})
"""By folded name: methods that are planned."""


def folded(name: str) -> str:
    """Return a name as it sounds: case, hyphens, underscores and spaces left out, ``++`` read as ``pp``."""
    return "".join(letter for letter in name.lower().replace("++", "pp") if letter not in "-_ \t")
