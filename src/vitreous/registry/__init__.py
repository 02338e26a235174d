"""Words: the language that methods and metrics share. How things are named, spelled, kept by name and cited."""

from vitreous.registry.citations import PAPERS, Paper, cited, credit
from vitreous.registry.parameters import Parameter, at_least, check_choice, check_memory, parameters_of
from vitreous.registry.registry import Registry
from vitreous.registry.spec import understood, written

__all__ = [
    "PAPERS",
    "Paper",
    "Parameter",
    "Registry",
    "at_least",
    "check_choice",
    "check_memory",
    "cited",
    "credit",
    "parameters_of",
    "understood",
    "written",
]
