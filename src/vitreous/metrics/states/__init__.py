"""States: perturbed images that metrics ask for, run once for all of them."""
