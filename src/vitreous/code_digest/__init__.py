"""Which code makes a number: a digest of everything outside Vitreous that takes part in it.

What is imported from files is known by their text: the file that defines it and every file that this one imports,
directly or not, outside the installed packages. Installed packages are known by name, version and the digests that
their installer recorded. What was typed in a notebook or made by ``exec`` is known by its compiled code and by what it
refers to. Bound values count everywhere: arguments of a ``partial``, variables of a closure, attributes of an object.
"""

from vitreous.code_digest.objects import code_digest, is_external, is_unknown

__all__ = ["code_digest", "is_external", "is_unknown"]
