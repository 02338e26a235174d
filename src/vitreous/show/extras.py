"""Pictures beyond the map: a registry from what a method returns beside it to the picture that shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from .owners import owners
from .product import before_and_after

__all__ = ["EXTRAS", "Extra", "Shown", "draws_extra", "pictures_of"]


class Shown(Protocol):
    """What a picture may be made of: an explanation."""

    @property
    def map(self) -> Any: ...

    @property
    def image(self) -> Image.Image: ...

    @property
    def extras(self) -> Mapping[str, Any]: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def source_line(self) -> str: ...


Draw = Callable[[Shown, int], Image.Image]


@dataclass(frozen=True)
class Extra:
    """One such picture: `draw` gets the explanation and the side of a tile in pixels."""

    name: str
    title: str
    needs: tuple[str, ...]
    """Names of the extras that it shows."""
    draw: Draw
    made_by: str = ""
    """A method that returns them, with `{}` for the one it is put around."""


EXTRAS: dict[str, Extra] = {}


def draws_extra(name: str, title: str, needs: Sequence[str], made_by: str = "") -> Callable[[Draw], Draw]:
    """Register a picture under its name, which is also that of its file; used as a decorator."""

    def decorate(draw: Draw) -> Draw:
        if name in EXTRAS:
            raise ValueError(f"two pictures are called {name!r}")
        EXTRAS[name] = Extra(name, title, tuple(needs), draw, made_by)
        return draw

    return decorate


def pictures_of(extras: Mapping[str, Any]) -> list[Extra]:
    """The pictures that these extras allow."""
    return [each for each in EXTRAS.values() if all(need in extras for need in each.needs)]


@draws_extra("owners", "Who owns which patch", needs=("distribution", "maps", "classes"), made_by="var({})")
def _owners(shown: Shown, tile: int) -> Image.Image:
    """The distribution of `var`: who owns which patch, what is discriminative and what is shared."""
    there = shown.extras["classes"] >= 0
    shares, maps = (shown.extras[name][there].numpy() for name in ("distribution", "maps"))
    return owners(shown.image, shares, maps, shown.names, shown.source_line, tile)


@draws_extra("times_input", "Map times input", needs=("distribution", "maps", "classes"), made_by="var({})")
def _times_input(shown: Shown, tile: int) -> Image.Image:
    """How VAR's paper shows transformers: the picture times the base's own map, and times what `var` leaves of it."""
    before, after = shown.extras["maps"][0].numpy(), shown.map.numpy()
    titles = f"{shown.names[0]}: the base alone", f"{shown.names[0]}: with var"
    return before_and_after(shown.image, before, after, titles, shown.source_line, tile)
