"""Perturbation: what the model says about changed copies of an image."""

# The order is the order of the tables.
from vitreous.methods.perturbation import rise, occlusion, surrogates, hsic, vit_cx, atman  # noqa: F401  # isort: skip
