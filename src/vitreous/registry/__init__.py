"""What methods and metrics are called: names, aliases, presets, specs, defaults and citations."""

from vitreous.registry.citations import Paper, credit, find_papers
from vitreous.registry.parameters import (
    check_at_least,
    check_choice,
    check_interval,
    check_memory,
    check_parameters,
    checked,
    choice,
    choices_of,
    number,
)
from vitreous.registry.registry import Parameter, Registry, parameters_of
from vitreous.registry.spec import format_value, parse_spec

__all__ = [
    "Paper",
    "Parameter",
    "Registry",
    "check_at_least",
    "check_choice",
    "check_interval",
    "check_memory",
    "check_parameters",
    "checked",
    "choice",
    "choices_of",
    "credit",
    "find_papers",
    "format_value",
    "number",
    "parameters_of",
    "parse_spec",
]
