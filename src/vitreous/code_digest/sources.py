"""The files behind a module: its own, those that it imports, and what an installer recorded."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
import types
import warnings
from functools import cache, lru_cache
from importlib import metadata
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.errors import VitreousWarning

LIBRARIES = {"vitreous", "torch", "torchvision", "timm", "transformers", "numpy", "scipy", "PIL", "safetensors", "rich"}
"""Vitreous and what it runs with: their versions are recorded with every result, and make no other identity."""
_IMPORT = "import_module"
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
    if package in LIBRARIES or package not in sys.stdlib_module_names or package == "__main__":
        return package in LIBRARIES
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
    installed = _distribution(home.partition(".")[0]) if _is_installed(place.file) else None
    return [installed] if installed is not None else _local_files(home)


def _local_files(home: str) -> list[Any] | None:
    """Describe the file of a module and every one that it imports; ``None`` where it cannot be read."""
    files: dict[str, Any] = {}
    waiting = [home]
    while waiting:
        name = waiting.pop()
        package = name.partition(".")[0]
        place = None if name in files or is_library(package) else _place(name)
        if place is None or place.file is None:
            continue
        if _is_installed(place.file) and _distribution(package) is not None:
            files[package] = _distribution(package)
            continue
        content = _content(name, place.file)
        if content is not None:
            files[name] = [_digest(content), *_edited(name, content)]
            waiting += _imports(content, _package_of(name, place))
        elif name == home:
            return None
    return [["" if name == home else name, facts] for name, facts in sorted(files.items())]


def _package_of(name: str, place: _Place) -> str:
    """Return the package that relative imports of a module start from; that of a script is its own word."""
    package = getattr(sys.modules.get(name), "__package__", None)
    return str(package or (name if place.folders else name.rpartition(".")[0]))


def _place(name: str) -> _Place | None:
    """Find a module without importing anything."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return _Place(None if file is None else str(file), tuple(map(str, getattr(module, "__path__", ()))))
    parent = name.rpartition(".")[0]
    above = _place(parent) if parent else None
    try:
        if not parent:
            spec = importlib.util.find_spec(name)
        else:
            spec = PathFinder.find_spec(name, above.folders) if above is not None and above.folders else None
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
    spec, now = getattr(module, "__spec__", None) or module, _digest(content)
    first_spec, then = _first_read.get(name, (None, ""))
    if first_spec is not spec:
        _first_read[name] = spec, now
        return []
    if then != now:
        report(f"{name} has changed since it was imported: start again to use it as it is now")
        return ["imported as", then]
    return []


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@lru_cache(maxsize=1024)
def _imports(content: bytes, package: str) -> tuple[str, ...]:
    """Return the full names of all modules that a text may import, anywhere in it, and of the packages around them."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # compiled, or of another Python
        return ()
    names = (name for node in ast.walk(tree) for name in _imported_by(node, package) if name)
    with_packages = (path for name in names for path in accumulate(name.split("."), "{}.{}".format))
    return tuple(dict.fromkeys(with_packages))


def _imported_by(node: ast.AST, package: str) -> list[str]:
    """Return the names of the modules that a statement or a call may import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join(filter(None, [*above, node.module]))
        return [base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)]
    function = getattr(node, "func", None)
    if isinstance(node, ast.Call) and node.args and getattr(function, "attr", getattr(function, "id", "")) == _IMPORT:
        name = getattr(node.args[0], "value", None)
        return [f"{package}{name}" if name.startswith(".") else name] if isinstance(name, str) else []
    return []


# -- installed packages ------------------------------------------------------------------------------------------


def _is_installed(file: str) -> bool:
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts)) or file.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_paths()[kind] + "/" for kind in ("stdlib", "platstdlib"))


@cache
def _distribution(package: str) -> list[str] | None:
    """Return what the installer recorded about a package; ``None`` where there is no record."""
    try:
        distribution = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        names = _packages_distributions().get(package)
        if not names:
            return None
        distribution = metadata.distribution(names[0])
    lines = (distribution.read_text("RECORD") or "").splitlines()
    lines = sorted(line for line in lines if ".py," in line and not line.startswith(".."))
    return ["installed", package, str(distribution.version), _digest("\n".join(lines).encode())]


_packages_distributions = cache(metadata.packages_distributions)
