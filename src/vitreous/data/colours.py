"""Whether tensors look as if nobody had normalised them: one warning for each call, however many batches there are."""

from __future__ import annotations

import warnings

from torch import Tensor

from vitreous.errors import VitreousWarning
from vitreous.models import View

__all__ = ["Colours"]

_BYTES = 16.0
"""No normalised picture without a negative value goes beyond this."""
_SPREAD = 0.5
"""Pictures in 0..1 use at least this much of it; less may be a bright or grey one that is normalised."""


class Colours:
    """Looks at the first tensors of one source."""

    def __init__(self, view: View) -> None:
        how = view.preprocess
        self.name, self.looked = view.name, not any(how.mean) and all(value == 1 for value in how.std)
        colours = list(zip(how.mean, how.std, strict=False))
        self.low = min((0 - mean) / (std or 1) for mean, std in colours)
        self.high = max((1 - mean) / (std or 1) for mean, std in colours)

    def look(self, batch: Tensor) -> None:
        """Warn if these are raw bytes, or colours from 0 to 1 where the model expects negative values too."""
        if self.looked or batch.ndim != 4:  # tokens have no colours
            return
        self.looked = True
        least, most = float(batch.min()), float(batch.max())
        raw = least >= 0 and most > _BYTES
        unit = least >= 0 and most <= 1 and most - least >= _SPREAD and self.low < -0.5
        if raw or unit:
            warnings.warn(
                f"the tensors hold values from {least:.3g} to {most:.3g} and look as if they were not normalised; "
                f"{self.name} takes about {self.low:.2g} to {self.high:.2g} (see its preprocess)",
                VitreousWarning,
                stacklevel=2,
            )
