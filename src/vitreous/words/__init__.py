"""Words: the language that methods and metrics share. How things are named, spelled, kept by name and cited."""

from vitreous.words.choices import at_least, check_choice, check_memory
from vitreous.words.papers import PAPERS, Paper, cited, credit
from vitreous.words.parameters import Parameter, parameters_of
from vitreous.words.rooms import listed_by
from vitreous.words.shelf import Shelf
from vitreous.words.spelling import understood, written

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
