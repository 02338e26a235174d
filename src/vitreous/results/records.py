"""Results as files: one way to make plain data of them, to write it, to read it, and to say what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import disk
from vitreous.errors import VitreousError

__all__ = ["plain", "record", "write"]


def plain(value: Any) -> Any:
    """Return plain data, arrays as lists; a number that is not finite is ``None``."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def record(path: str | Path, schema: str, what: str) -> Iterator[dict[str, Any]]:
    """Give the data of a file of a form to those who read it; what is wrong with it is one line that names the file."""
    try:
        data = json.loads(Path(path).read_bytes().decode(errors="surrogateescape"))
        if data.get("schema") != schema:
            raise VitreousError(f"{path} is no {what} of the form {schema}, but {data.get('schema')!r}")
        yield data
    except OSError as error:
        raise VitreousError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VitreousError(f"{path} is no {what}: {type(error).__name__} {error}") from None


def write(path: str | Path, texts: Mapping[str, Callable[[], str]], *, overwrite: bool = False) -> Path:
    """Write the text that belongs to the ending of a path, whole or not at all."""
    path = Path(path)
    if path.suffix not in texts:
        raise VitreousError(f"{path} must end in {' or '.join(texts)}")
    disk.write_file(path, texts[path.suffix]().encode(errors="surrogateescape"), overwrite=overwrite)
    return path
