"""Many images, methods and metrics: planned, run, stored and reported."""
