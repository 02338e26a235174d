"""Views of Hugging Face's models, one file per family."""
