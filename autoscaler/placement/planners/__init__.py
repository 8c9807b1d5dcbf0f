"""Planners of a whole pool: which models share which accelerator, in which batches and shares.

`catalogue.py` lists them; each has the interface of `problem.py` and returns a `plan.Placement`.
All pure.
"""
