"""Comparisons of optimizers: what is asked, the plan of every run that answers it, and the runs.

Asking is for `study` (a TOML file) and `request` (a command line); either becomes a `plan`. How a
single run is trained is not this room's business, nor what the runs say: that is `mars.report`.
"""
