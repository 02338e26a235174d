"""The one module that writes to disk: whole or not at all, one writer at a time, never over what is not ours.

What is written grows in a private place beside its target (``.vitreous-…``, a name of its own for every writer) and is
published by one rename. A folder is replaced by exchanging names with the new one, and goes away only after that; where
the system cannot exchange names it steps aside first, and ``recover`` puts it back if the writer died in between. A
folder is ours if it holds a manifest of ours and nothing else than the files that the manifest lists.
"""

from vitreous.io.atomic import (
    Busy,
    Content,
    Draft,
    check_file,
    check_folder,
    discard,
    folder,
    holds,
    lock,
    manifest_of,
    new_folder,
    recover,
    write_file,
)
from vitreous.io.paths import SIZE_SWITCH, SWITCH, cache_folder, cached, mark_used, safe_name, slug, trim_cache
from vitreous.io.reading import open_file, read_file, read_folder

__all__ = [
    "SIZE_SWITCH",
    "SWITCH",
    "Busy",
    "Content",
    "Draft",
    "cache_folder",
    "cached",
    "check_file",
    "check_folder",
    "discard",
    "folder",
    "holds",
    "lock",
    "manifest_of",
    "mark_used",
    "new_folder",
    "open_file",
    "read_file",
    "read_folder",
    "recover",
    "safe_name",
    "slug",
    "trim_cache",
    "write_file",
]
