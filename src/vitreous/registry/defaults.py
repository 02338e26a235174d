"""What is meant where nothing is said: the same words in Python and on the command line."""

from __future__ import annotations

from itertools import product

from vitreous.registry.parameters import check_choice

__all__ = ["BASELINES", "COMPARED", "METHOD", "METRICS", "MODEL", "STEPS", "compared", "judged", "known_as", "ladder"]

MODEL = "timm/vit_base_patch16_224"
STEPS = ("quick", "careful", "best")
"""How much effort an explanation may take; see the manual for what each is worth."""

_QUICK = 'logprob(consensus(witness(decompx, grad_rollout), grad_rollout, attcat, combine=scaled, weights="3,2,1"))'
_QUICK_IN_WINDOWS = "logprob(plus(decompx, combine=scaled))"
_QUICK_ON_FEATURES = (
    "consensus(lrp(rules=epsilon_plus, at=pixels), logprob(layercam), logprob(input_x_gradient), "
    'combine=scaled, weights="2,1,1")'
)
_QUICK_WITHOUT_RULES = "logprob(consensus(layercam, integrated_gradients(steps=10), combine=scaled))"


def ladder(
    step: str, windows: bool = False, drops: bool = True, half: bool = False, stream: bool = True, walks: bool = True
) -> str:
    """Return the spelling of one step.

    ``windows``: attention does not reach everywhere; ``drops``: tokens can be left out; ``half``: samples in float16;
    ``stream``: all layers add to one stream of tokens. Where they do not: ``walks``, relevance has a rule for all of
    them.
    """
    check_choice("effort", step, STEPS)
    float16 = ", half=true" if half else ""
    if stream:
        quick = _QUICK_IN_WINDOWS if windows else _QUICK
    else:
        quick = _QUICK_ON_FEATURES if walks else _QUICK_WITHOUT_RULES
    if step == "quick":
        return quick
    if step == "best" and stream and not drops:  # then all replicas are the best there is
        return f"consensus(coiba{'(half=true)' if half else ''}, {quick}, combine=scaled)"
    careful = f"consensus(coiba(samples=3{float16}), {quick}, combine=scaled)"
    if step == "careful":
        return careful
    if not stream:
        return f"consensus({careful}, refine({careful}, doubt=2.0{float16}), combine=scaled)"
    return f"consensus({careful}, refine({careful}, spread=0.3, doubt=2.0{float16}), combine=matched)"


def known_as(spec: str) -> str:
    """Return the step of the ladder that a spelling is, for titles and names of folders; or else the spelling."""
    return _STEP_OF.get(spec, spec)


_EITHER = (False, True)
_STEP_OF = {
    ladder(step, *facts): step for step in reversed(STEPS) for facts in product(*[_EITHER] * 5)
}  # of two steps with one spelling, the cheaper
METHOD = ladder("quick")
"""What a plain explain does, on most models."""
COMPARED = ("rollout", "generic", "gradcam", "skipplus(decompx)", "vtranm")
"""What the chosen step of the ladder is compared with, on most models."""
_COMPARED_ON_FEATURES = ("saliency", "input_x_gradient", "gradcam", "layercam", "xgradcam_plus")


def compared(stream: bool = True) -> tuple[str, ...]:
    """Return what the chosen step of the ladder is compared with; ``stream`` as for ``ladder``."""
    return COMPARED if stream else _COMPARED_ON_FEATURES


def judged(stream: bool = True) -> tuple[str, ...]:
    """Return what is judged beside it."""
    return ("generic",) if stream else ("gradcam",)


METRICS = ("insdel", "insertion", "deletion", "srg", "aopc", "lodds")
BASELINES = ("random", "constant", "centre")
"""What stands in every table, so that a number can be held against something."""
