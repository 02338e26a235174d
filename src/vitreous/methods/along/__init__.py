"""Attention followed through the blocks, and its gradient along a path from nothing to the image."""

from vitreous.methods.along import bidirectional, iia, inflow, tam  # noqa: F401
