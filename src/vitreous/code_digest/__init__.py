"""Which code makes a number: a digest of everything outside Vitreous that takes part in it.

What is imported from files is known by their text: the file that defines it and every file that this one imports,
directly or not, outside the installed packages. Installed packages are known by name, version and the digests that
their installer recorded. What was typed in a notebook or made by ``exec`` is known by its compiled code and by what it
refers to. Bound values count everywhere: arguments of a ``partial``, variables of a closure, attributes of an object;
but not those that the code itself writes when it runs, such as a counter or a list of what it has seen.
"""

from vitreous.code_digest.objects import code_digest, is_external, is_unknown
from vitreous.code_digest.writes import Writes, functions_of, names_read, writes_of

__all__ = ["Writes", "code_digest", "functions_of", "is_external", "is_unknown", "names_read", "writes_of"]
