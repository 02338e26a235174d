"""Parameters that must be one of a few words, or not too small."""

from __future__ import annotations

from collections.abc import Sequence

from vitreous.errors import SpellingError

__all__ = ["at_least", "check_choice"]


def check_choice(name: str, given: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if given not in choices:
        raise SpellingError(f"{name}={given!r} is not one of {', '.join(choices)}")


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a number that is too small to mean anything."""
    if not value >= least:
        raise SpellingError(f"{name}={value} must be at least {least:g}")
