"""Localisation: does a map lie where the object is? Needs to be told where that is, and no forwards.

A map may be right although the model looks elsewhere, and wrong where the model rightly uses what surrounds the object.
"""

# Importing a module registers its metrics; the order is the order of the tables.
from vitreous.metrics.localisation import (  # noqa: F401  # isort: skip
    segmentation,
    pointing,
    mass,
    regions,
    ranks,
)
