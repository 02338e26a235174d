"""Passes: running a model and writing down what happened. The only room with hooks and function modes."""

from vitreous.passes.ask import Keep, Pass, Reduce, whole
from vitreous.passes.session import Session
from vitreous.passes.target import VALUES, Target, TargetSpec, plain_target, probabilities
from vitreous.passes.trace import Trace

__all__ = [
    "VALUES",
    "Keep",
    "Pass",
    "Reduce",
    "Session",
    "Target",
    "TargetSpec",
    "Trace",
    "plain_target",
    "probabilities",
    "whole",
]
