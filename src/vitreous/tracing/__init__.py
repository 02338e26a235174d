"""Passes: running a model and writing down what happened. The only room with hooks and function modes."""

from vitreous.tracing.context import Rivals, Session
from vitreous.tracing.decompose import explicit_shares
from vitreous.tracing.records import Block, Keep, Pass, Reduce, Trace, whole
from vitreous.tracing.rules import Rules
from vitreous.tracing.targets import VALUES, Target, Targets, TargetSpec, plain_target, probabilities

__all__ = [
    "VALUES",
    "Block",
    "Keep",
    "Pass",
    "Reduce",
    "Rivals",
    "Rules",
    "Session",
    "Target",
    "TargetSpec",
    "Targets",
    "Trace",
    "explicit_shares",
    "plain_target",
    "probabilities",
    "whole",
]
