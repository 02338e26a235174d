"""Methods: each says which pass it needs and reads a map out of it. One file per family."""

# Importing a family registers its methods; the order is the order of the tables.
from vitreous.methods import (  # noqa: F401  # isort: skip
    rollout,
    attention_gradient,
    attention_path,
    inflow,
    token_gradient,
    cam,
    decomposition,
    value_weighted,
    vtranm,
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
    var,
    controls,
)
from vitreous.methods.base import Answer, Method, answer, resolve_layer, to_grid
from vitreous.methods.effort_levels import effort
from vitreous.methods.registry import Info, method, methods, register
from vitreous.registry import Paper, listed_by

__all__ = [
    "Answer",
    "Info",
    "Method",
    "Paper",
    "answer",
    "effort",
    "method",
    "methods",
    "register",
    "resolve_layer",
    "to_grid",
]

listed_by(__name__, methods)
