"""What methods and metrics are called: names, aliases, presets, specs, defaults and citations."""

from vitreous.registry.citations import Paper, credit, find_papers
from vitreous.registry.registry import (
    Parameter,
    Registry,
    check_at_least,
    check_choice,
    check_intervals,
    check_memory,
    parameters_of,
)
from vitreous.registry.spec import format_value, parse_spec

__all__ = [
    "Paper",
    "Parameter",
    "Registry",
    "check_at_least",
    "check_choice",
    "check_intervals",
    "check_memory",
    "credit",
    "find_papers",
    "format_value",
    "parameters_of",
    "parse_spec",
]
