"""Names that people know from papers and other libraries: what they are called here, or why they are not here.

What is registered by name: methods here, metrics in their room, and what other packages add to either.
"""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Generic, Protocol, TypeVar

from vitreous.errors import SpecError, VitreousWarning, nearest, one_line
from vitreous.registry.defaults import STEPS, ladder

__all__ = [
    "MEANT",
    "PLANNED",
    "Registry",
    "folded",
]

MEANT = {
    "smoothgrad": "smooth(saliency)",
    "attentionrollout": "rollout",
    "gradientrollout": "grad_rollout",
    "inputxgrad": "input_x_gradient",
    "gradientxinput": "input_x_gradient",
    "vanillagradient": "saliency",
    "gradientinput": "input_x_gradient",
    "gradxinput": "input_x_gradient",
    "gradcamplusplus": "gradcam_pp",
    "smoothgradsquared": "smooth(saliency, kind=squares)",
    "squaregrad": "smooth(saliency, kind=squares)",
    "vargrad": "smooth(saliency, kind=variance)",
    "guidedintegratedgradients": "guided_ig",
    "blurintegratedgradients": "blur_ig",
    "gradshap": "gradient_shap",
    "shap": "kernel_shap",
    "limeimage": "lime",
    "featureablation": "occlusion",
    "slidingwindow": "occlusion",
    "hsicattributionmethod": "hsic",
    "attentionmanipulation": "atman",
    "layerwiserelevancepropagation": "lrp",
    "transformerattribution": "transatt",
    "transitionattentionmaps": "tam",
    "beyondintuition": "bt_h",
    "iteratedintegratedattributions": "iia",
    **{step: ladder(step) for step in STEPS},
}
"""By folded name: the spelling that is meant. Steps of the ladder are those of most models."""

PLANNED = frozenset({"pami"})
"""By folded name: methods that are planned."""


def folded(name: str) -> str:
    """Return a name as it sounds: case, hyphens, underscores and spaces left out, ``++`` read as ``pp``."""
    return "".join(letter for letter in name.lower().replace("++", "pp") if letter not in "-_ \t")


class Named(Protocol):
    """What can stand on a shelf."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Things of one kind (``noun``) by name and alias, in the order of ``families``.

    Importing what an entry point of the ``group`` names adds it.

    A name is found however it is written: ``Grad-CAM++`` is ``gradcam_pp``. Where two names sound alike, only the exact
    ones are found.
    """

    def __init__(self, noun: str, group: str, families: tuple[str, ...]) -> None:
        self.noun, self.group, self.families = noun, group, families
        self.by_name: dict[str, T] = {}
        self.aliases: dict[str, str] = {}
        self.complete = False

    def add(self, thing: T) -> None:
        """Put a thing on the shelf; its name and aliases must be free."""
        for word in (thing.name, *thing.aliases):
            if word in self.by_name or word in self.aliases:
                raise SpecError(f"two {self.noun}s are called {word!r}")
        self.by_name[thing.name] = thing
        self.aliases.update(dict.fromkeys(thing.aliases, thing.name))

    def find(self, name: str) -> T:
        """Return the thing called ``name`` or by one of its aliases, in any of the usual ways to write them."""
        found = self._called(name)
        if found is not None:
            return found
        elsewhere = self._elsewhere(name)
        if elsewhere is not None:
            raise SpecError(f"the {self.noun} {name!r} is spelled {elsewhere} here")
        if self.noun == "method" and folded(name) in PLANNED:
            raise SpecError(f"the {self.noun} {name!r} is planned, not there yet")
        raise SpecError(f"unknown {self.noun} {name!r}{nearest(name, [*self.by_name, *self.aliases])}")

    def meant(self, name: str) -> str | None:
        """Return the spelling here of what is called ``name``, spaces in it allowed; ``None`` for any other text."""
        found = self._called(name)
        return self._elsewhere(name) if found is None else found.name

    def _called(self, name: str) -> T | None:
        self._load_third_parties()
        exact = self.by_name.get(self.aliases.get(name, name))
        if exact is not None:
            return exact
        sound = folded(name)
        alike = {self.aliases.get(word, word) for word in (*self.by_name, *self.aliases) if folded(word) == sound}
        return self.by_name.get(alike.pop() if len(alike) == 1 else self._elsewhere(name) or "")

    def _elsewhere(self, name: str) -> str | None:
        return MEANT.get(folded(name)) if self.noun == "method" else None

    def all(self) -> list[T]:
        """Return everything, family by family."""
        self._load_third_parties()
        families = list(dict.fromkeys((*self.families, *(thing.family for thing in self.by_name.values()))))
        return sorted(self.by_name.values(), key=lambda thing: families.index(thing.family))

    def _load_third_parties(self) -> None:
        if not self.complete:
            self.complete = True
            for entry in entry_points(group=self.group):
                try:
                    entry.load()
                except Exception as error:  # one broken package must not take the others away
                    reason = one_line(f"{type(error).__name__}: {error}")[:200]
                    text = f"the {self.noun} {entry.name} of another package cannot be imported ({reason})"
                    warnings.warn(text, VitreousWarning, stacklevel=4)
