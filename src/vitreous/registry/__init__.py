"""Words: the language that methods and metrics share. How things are named, spelled, kept by name and cited."""

from vitreous.registry.citations import PAPERS, Paper, cited, credit
from vitreous.registry.parameters import Parameter, at_least, check_choice, check_memory, parameters_of
from vitreous.registry.registry import Shelf
from vitreous.registry.rooms import listed_by
from vitreous.registry.spec import understood, written

__all__ = [
    "PAPERS",
    "Paper",
    "Parameter",
    "Shelf",
    "at_least",
    "check_choice",
    "check_memory",
    "cited",
    "credit",
    "listed_by",
    "parameters_of",
    "understood",
    "written",
]
