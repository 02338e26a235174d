"""The one package that writes to disk: whole or not at all, one writer at a time, and never over files of others.

What is written grows in a draft beside its target (``.vitreous-…``, a name of its own for every writer) and is
published by one rename. A folder is replaced by exchanging names with the new one, and goes away only after that; where
the system cannot exchange names it steps aside first, and ``recover`` puts it back if the writer died in between. A
folder was written here if it holds a manifest of ours and nothing else than the files that the manifest lists.
"""

from vitreous.io.atomic import (
    Busy,
    Draft,
    check_file,
    check_folder,
    discard,
    folder,
    lock,
    manifest_of,
    new_folder,
    open_file,
    read_file,
    read_folder,
    read_json,
    read_text,
    recover,
    unlisted_files,
    write_file,
)
from vitreous.io.paths import CACHE_VARIABLE, cache_folder, cached, mark_used, safe_name, slug, trim_cache

__all__ = [
    "CACHE_VARIABLE",
    "Busy",
    "Draft",
    "cache_folder",
    "cached",
    "check_file",
    "check_folder",
    "discard",
    "folder",
    "lock",
    "manifest_of",
    "mark_used",
    "new_folder",
    "open_file",
    "read_file",
    "read_folder",
    "read_json",
    "read_text",
    "recover",
    "safe_name",
    "slug",
    "trim_cache",
    "unlisted_files",
    "write_file",
]
