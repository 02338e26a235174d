"""The explorer: a page on this machine to look at explanations, and the small server behind it.

Data walks through it in one direction: ``guard`` looks at every request before anyone else, ``app`` knows the
addresses, ``jobs`` runs what takes long, one after the other, ``asking`` and its neighbours do the work with the public
API, ``wire`` writes arrays and pictures down for a browser. Nothing is kept on disk.
"""
