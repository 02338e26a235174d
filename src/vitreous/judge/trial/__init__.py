"""The metrics on trial: where the truth is known, each of them must rank what is true above what is not."""

from vitreous.judge.trial.run import trial

__all__ = ["trial"]
