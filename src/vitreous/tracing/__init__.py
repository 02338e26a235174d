"""Passes: running a model and writing down what happened. The only room with hooks and function modes."""

from vitreous.tracing.context import Context, ContrastContexts
from vitreous.tracing.decompose import explicit_contributions
from vitreous.tracing.records import (
    Activation,
    ActivationCache,
    Block,
    Pass,
    Record,
    Reduce,
    activation_grad,
    activation_value,
    resolve_layer,
    upcast,
)
from vitreous.tracing.rules import Composite
from vitreous.tracing.targets import VALUES, Target, Targets, TargetSpec, plain_target, probabilities

__all__ = [
    "VALUES",
    "Activation",
    "Block",
    "Record",
    "Pass",
    "Reduce",
    "ContrastContexts",
    "Composite",
    "Context",
    "Target",
    "TargetSpec",
    "Targets",
    "ActivationCache",
    "explicit_contributions",
    "plain_target",
    "probabilities",
    "activation_grad",
    "activation_value",
    "resolve_layer",
    "upcast",
]
