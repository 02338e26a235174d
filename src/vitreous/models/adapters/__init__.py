"""Adapters: one file for each library and kind of model."""
