"""Names that every file system takes, from any text."""

from __future__ import annotations

import hashlib
import re
import unicodedata

__all__ = ["safe_name", "slug"]

_LONGEST = 200  # bytes of a name; file systems take 255, and people add to names


def safe_name(text: str, otherwise: str = "image") -> str:
    """Return a name that every file system takes, as much like ``text`` as can be; ``otherwise`` if nothing is left.

    Separators, unprintable and reserved characters become dashes; dots, dashes and blanks at the ends go away, so that
    it is never ``.`` or ``..``. A name of more than 200 bytes is cut, and ends in a digest of the whole.
    """
    kept = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "-" for c in unicodedata.normalize("NFC", text))
    kept = re.sub(r"-{2,}", "-", kept).strip(" .-")
    if len(kept.encode()) > _LONGEST:
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=5).hexdigest()
        kept = f"{kept.encode()[: _LONGEST - 11].decode(errors='ignore').rstrip(' .-')}-{digest}"
    if re.fullmatch(r"(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", kept, re.IGNORECASE):  # devices, on Windows
        kept = f"_{kept}"
    return kept or otherwise


def slug(text: str, otherwise: str = "none") -> str:
    """Return a safe name without brackets and blanks: ``logprob(plus(decompx))`` is ``logprob-plus-decompx``."""
    return safe_name(re.sub(r"[^\w.+=]+", "-", text), otherwise)
