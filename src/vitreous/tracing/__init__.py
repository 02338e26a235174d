"""Passes: running a model and recording what happens. The only package with hooks and function modes."""

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
)
from vitreous.tracing.rules import Composite
from vitreous.tracing.rules.base import upcast
from vitreous.tracing.targets import VALUES, Target, Targets, TargetSpec, plain_target, probabilities

__all__ = [
    "VALUES", "Activation", "ActivationCache", "Block", "Composite", "Context", "ContrastContexts", "Pass", "Record",
    "Reduce", "Target", "TargetSpec", "Targets", "activation_grad", "activation_value", "explicit_contributions",
    "plain_target", "probabilities", "resolve_layer", "upcast",
]  # fmt: skip
