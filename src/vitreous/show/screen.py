"""Pictures on the screen."""

from __future__ import annotations

from PIL import Image


def display(image: Image.Image) -> None:
    """Show a picture: in a notebook in place, elsewhere in the system's image viewer."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        image.show()
    else:
        display(image) if get_ipython() is not None else image.show()
