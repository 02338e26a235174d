"""Methods: each says which pass it needs and reads a map out of it. One file per family."""

# Importing a family registers its methods; the order is the order of the tables.
from vitreous.methods import (  # noqa: F401  # isort: skip
    attention,
    attention_gradient,
    along,
    token_gradient,
    cam,
    cam_scores,
    decomposition,
    mixing,
    fullgrad,
    vtranm,
    lrp,
    gradient_lrp,
    coiba,
    input_gradient,
    guided,
    deeplift,
    paths,
    sampling,
    perturbation,
    combine,
    var,
    witness,
    consensus,
    refine,
    yardsticks,
)
from vitreous.methods.base import Answer, Method, answer, resolve_layer, to_grid
from vitreous.methods.ladder import effort
from vitreous.methods.registry import Info, method, methods, register
from vitreous.words import Paper, listed_by

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
