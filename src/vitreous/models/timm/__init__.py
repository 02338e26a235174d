"""Views of timm's models, one file per family."""
