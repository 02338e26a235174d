"""The files behind a module: its own, those that it imports, and what an installer recorded."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.errors import VitreousWarning

__all__ = ["is_from_file", "is_library", "report", "source_of"]

_LIBRARIES = frozenset(
    ("vitreous", "torch", "torchvision", "timm", "transformers", "numpy", "scipy", "PIL", "safetensors", "rich")
)
"""Vitreous and what it runs with: their versions are recorded with every result, and make no other identity."""
_first_read: dict[str, tuple[Any, str]] = {}
"""By module: its spec, which another import replaces, and the digest of its file when that was first read."""
_reported: set[str] = set()


def report(text: str) -> None:
    """Warn, once in a process."""
    if text not in _reported:
        _reported.add(text)
        warnings.warn(text, VitreousWarning, stacklevel=3)


class _Place(NamedTuple):
    """Where a module comes from: its file, if it has one, and the folders of its submodules, if it is a package."""

    file: str | None
    folders: tuple[str, ...]


def is_library(package: str) -> bool:
    """Whether a package is Vitreous, one that it runs with, or Python's own."""
    if package in _LIBRARIES or package not in sys.stdlib_module_names or package == "__main__":
        return package in _LIBRARIES
    file = getattr(sys.modules.get(package), "__file__", None)  # a file of one's own may have the name of Python's
    return file is None or _is_installed(str(file))


def is_from_file(code: types.CodeType, home: str) -> bool:
    """Whether code stands in the file of its module: what ``exec`` or a notebook made does not."""
    place = _place(home)
    return place is not None and place.file is not None and Path(place.file).stem == Path(code.co_filename).stem


def source_of(home: str) -> list[Any] | None:
    """Describe the files behind a module: none for Vitreous and its libraries, ``None`` where there are no files."""
    if is_library(home.partition(".")[0]):
        return []
    place = _place(home)
    if place is None or place.file is None:
        return None
    installed = _installed(home, place.file)
    return [installed] if installed is not None else _local_files(home)


def _local_files(home: str) -> list[Any] | None:
    """Describe the file of a module and every one that it imports; ``None`` where it cannot be read."""
    found: dict[str, Any] = {}
    waiting = [home]
    while waiting:
        name = waiting.pop()
        package = name.partition(".")[0]
        place = _place(name) if name not in found and not is_library(package) else None
        if place is None or place.file is None:
            continue
        installed = _installed(name, place.file)
        if installed is not None:
            found[package] = installed
            continue
        content = _content(name, place.file)
        if content is None:
            if name == home:
                return None
            continue
        found[name] = [_digest(content), *_edited(name, content)]
        inside = name if place.folders else name.rpartition(".")[0]
        waiting += _imports(content, _package_of(name, inside))
    return [[name if name != home else "", told] for name, told in sorted(found.items())]


def _package_of(name: str, usual: str) -> str:
    """Return the package that relative imports of a module start from; that of a script is its own word."""
    return str(getattr(sys.modules.get(name), "__package__", None) or usual)


def _place(name: str) -> _Place | None:
    """Find a module without importing anything."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return _Place(None if file is None else str(file), tuple(map(str, getattr(module, "__path__", ()))))
    package, _, last = name.rpartition(".")
    if not package:
        return _top_level_place(name)
    above = _place(package)
    for folder in above.folders if above is not None else ():
        for file in (Path(folder, last, "__init__.py"), Path(folder, f"{last}.py")):
            if file.is_file():
                return _Place(str(file), (str(file.parent),) if file.stem == "__init__" else ())
    return None


def _top_level_place(name: str) -> _Place | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    return _Place(spec.origin if spec.has_location else None, tuple(spec.submodule_search_locations or ()))


def _content(name: str, file: str) -> bytes | None:
    """Return the text of a module with one kind of line end, or the bytes of one that was compiled."""
    if file.endswith(".pyc"):
        return None
    try:
        content = Path(file).read_bytes()
    except OSError:  # inside an archive
        loader = getattr(sys.modules.get(name), "__loader__", None)
        try:
            content = str(loader.get_source(name)).encode()  # type: ignore[union-attr]
        except (AttributeError, ImportError, OSError):
            return None
    return content.replace(b"\r\n", b"\n") if file.endswith(".py") else content


def _edited(name: str, content: bytes) -> list[str]:
    """Return what a module was when it was first read, where its file has changed since and it was not loaded again.

    What runs is then the older code, or it may be: this is neither the one identity nor the other.
    """
    module = sys.modules.get(name)
    if module is None:
        return []
    mark, now = getattr(module, "__spec__", None) or module, _digest(content)
    known, then = _first_read.get(name, (None, ""))
    if known is not mark:
        _first_read[name] = mark, now
        return []
    if then != now:
        report(f"{name} has changed since it was imported: start again to use it as it is now")
        return ["imported as", then]
    return []


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@lru_cache(maxsize=1024)
def _imports(content: bytes, package: str) -> tuple[str, ...]:
    """Return the full names of all modules that a text may import, anywhere in it."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # compiled, or of another Python
        return ()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*(part for part in above if part), *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            named = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            found += [f"{package}{each}" if each.startswith(".") else each for each in named if isinstance(each, str)]
    return tuple(dict.fromkeys(_with_packages(found)))


def _with_packages(names: Iterable[str]) -> Iterator[str]:
    """Yield every module with the packages around it, which are imported with it."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: end + 1]) for end in range(len(parts)) if parts[0])


# -- installed packages ------------------------------------------------------------------------------------------


def _installed(name: str, file: str) -> list[str] | None:
    """Return name and version of an installed package, with a digest of its files; ``None`` for files of one's own."""
    return _distribution(name.partition(".")[0]) if _is_installed(file) else None


def _is_installed(file: str) -> bool:
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts)) or file.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_paths()[kind] + "/" for kind in ("stdlib", "platstdlib"))


@cache
def _distribution(package: str) -> list[str] | None:
    """Return what the installer recorded about a package; ``None`` where there is no record."""
    try:
        known = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        names = _distributions().get(package)
        if not names:
            return None
        known = metadata.distribution(names[0])
    lines = (known.read_text("RECORD") or "").splitlines()
    lines = sorted(line for line in lines if ".py," in line and not line.startswith(".."))
    return ["installed", package, str(known.version), _digest("\n".join(lines).encode())]


@cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
