"""The defaults: the same in Python and on the command line."""

from __future__ import annotations

from itertools import product

from vitreous.registry.parameters import check_choice

MODEL = "timm/vit_base_patch16_224"
EFFORT_LEVELS = ("quick", "careful", "best")
"""How much an explanation may cost; see the manual for what each is worth."""

_QUICK = 'logprob(consensus(witness(decompx, grad_rollout), grad_rollout, attcat, combine=scaled, weights="3,2,1"))'
_QUICK_WINDOWED = "logprob(plus(decompx, combine=scaled))"
_QUICK_ON_FEATURE_MAPS = (
    "consensus(lrp(rules=epsilon_plus, at=pixels), logprob(layercam), logprob(input_x_gradient), "
    'combine=scaled, weights="2,1,1")'
)
_QUICK_WITHOUT_RULES = "logprob(consensus(layercam, integrated_gradients(steps=10), combine=scaled))"


def effort_spec(
    level: str,
    is_windowed: bool = False,
    can_drop_tokens: bool = True,
    half: bool = False,
    has_residual_stream: bool = True,
    has_rules: bool = True,
) -> str:
    """Return the spec of the method recommended for a level of effort.

    ``half`` runs samples in float16; ``has_rules``: relevance has a rule for all layers of a network that has no
    residual stream.
    """
    check_choice("effort", level, EFFORT_LEVELS)
    if has_residual_stream:
        quick = _QUICK_WINDOWED if is_windowed else _QUICK
    else:
        quick = _QUICK_ON_FEATURE_MAPS if has_rules else _QUICK_WITHOUT_RULES
    if level == "quick":
        return quick
    if level == "best" and has_residual_stream and not can_drop_tokens:  # then all replicas are the best there is
        return f"consensus(coiba{'(half=true)' if half else ''}, {quick}, combine=scaled)"
    float16 = ", half=true" if half else ""
    sampled = f"consensus(coiba(samples=3{float16}), {quick}, combine=scaled)"
    if level == "careful":
        return sampled
    if not has_residual_stream:
        return f"consensus({sampled}, refine({sampled}, doubt=2.0{float16}), combine=scaled)"
    return f"consensus({sampled}, refine({sampled}, spread=0.3, doubt=2.0{float16}), combine=matched)"


_LEVEL_OF = {
    effort_spec(level, *facts): level
    for level in reversed(EFFORT_LEVELS)  # of two levels with one spec, the cheaper
    for facts in product(*[(False, True)] * 5)
}


def display_name(spec: str) -> str:
    """Return the level of effort that a spec is, for titles and names of folders; or else the spec."""
    return _LEVEL_OF.get(spec, spec)


METHOD = effort_spec("quick")
"""What ``explain`` does by default, on most models."""
COMPARISON_METHODS = ("rollout", "generic", "gradcam", "skipplus(decompx)", "vtranm")
"""What the chosen level of effort is compared with, on most models."""
METRICS = ("insdel", "insertion", "deletion", "srg", "aopc", "lodds")
CONTROLS = ("random", "constant", "centre")
"""The control methods of every table: what a score has to beat."""


def comparison_methods(has_residual_stream: bool = True) -> tuple[str, ...]:
    """Return what ``compare`` sets beside the chosen level of effort."""
    if has_residual_stream:
        return COMPARISON_METHODS
    return ("saliency", "input_x_gradient", "gradcam", "layercam", "xgradcam_plus")


def evaluation_methods(has_residual_stream: bool = True) -> tuple[str, ...]:
    """Return what ``evaluate`` sets beside the chosen level of effort."""
    return ("generic",) if has_residual_stream else ("gradcam",)


METHOD_SYNONYMS = {
    "smoothgrad": "smooth(saliency)",
    "attentionrollout": "rollout",
    "gradientrollout": "grad_rollout",
    **dict.fromkeys(("inputxgrad", "gradientxinput", "gradientinput", "gradxinput"), "input_x_gradient"),
    "vanillagradient": "saliency",
    "gradcamplusplus": "gradcam_pp",
    **dict.fromkeys(("smoothgradsquared", "squaregrad"), "smooth(saliency, kind=squares)"),
    "vargrad": "smooth(saliency, kind=variance)",
    "guidedintegratedgradients": "guided_ig",
    "blurintegratedgradients": "blur_ig",
    "gradshap": "gradient_shap",
    "shap": "kernel_shap",
    "limeimage": "lime",
    **dict.fromkeys(("featureablation", "slidingwindow"), "occlusion"),
    "hsicattributionmethod": "hsic",
    "attentionmanipulation": "atman",
    "layerwiserelevancepropagation": "lrp",
    "transformerattribution": "transatt",
    "transitionattentionmaps": "tam",
    "beyondintuition": "bt_h",
    "iteratedintegratedattributions": "iia",
    **{level: effort_spec(level) for level in EFFORT_LEVELS},
}
"""What papers and other libraries call methods, normalized, and the spec here; levels of effort as on most models."""
