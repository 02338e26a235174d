"""Perturbation: what the model says about changed copies of an image."""
