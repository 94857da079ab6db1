"""Trials of a spec's search space, on Ray. What knows Ray is in `tuner`, `runner` and `choosers` and is imported late:
the rest of the lab works without it."""

from slm_lab.experiment.search.run import check, resume, search

__all__ = ["check", "resume", "search"]
