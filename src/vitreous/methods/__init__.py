"""Methods: each says which pass it needs and reads a map out of it. One file per family."""

# Importing a family registers its methods; the order is the order of the tables.
from vitreous.methods import (  # noqa: F401  # isort: skip
    rollout,
    attention_gradient,
    attention_path,
    token_gradient,
    cam,
    cam_scores,
    decomposition,
    value_weighted,
    block_transitions,
    lrp,
    iba,
    input_gradient,
    integrated_gradients,
    xrai,
    token_subsets,
    occlusion_rise,
    surrogates,
    feature_perturbation,
    combinators,
    consensus,
    var,
    controls,
)
from vitreous.methods.base import Attribution, Method, compute_attributions, to_grid
from vitreous.methods.effort_levels import recommended_method, resolve_method
from vitreous.methods.registry import MethodInfo, get_method, list_methods, register_method

__all__ = [
    "Attribution",
    "MethodInfo",
    "Method",
    "compute_attributions",
    "recommended_method",
    "resolve_method",
    "get_method",
    "list_methods",
    "register_method",
    "to_grid",
]
