"""Gradients along other paths than the straight one, and what is made of them."""

# Importing a module registers its methods; the order is the order of the tables.
from vitreous.methods.paths import guided, blur, xrai, expected  # noqa: F401  # isort: skip
