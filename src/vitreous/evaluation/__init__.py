"""The judge: methods held against metrics, explanations against tests, models against their views."""
