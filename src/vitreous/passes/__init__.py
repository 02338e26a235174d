"""Passes: running a model and writing down what happened. The only room with hooks and function modes."""

from vitreous.passes.ask import Block, Keep, Pass, Reduce, whole
from vitreous.passes.explicit import explicit_shares
from vitreous.passes.rivals import Rivals
from vitreous.passes.rules import Rules
from vitreous.passes.session import Session
from vitreous.passes.target import VALUES, Target, Targets, TargetSpec, plain_target, probabilities
from vitreous.passes.trace import Trace

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
