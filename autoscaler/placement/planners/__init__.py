"""Planners of a whole pool: which models share which accelerator, in which batches and shares.

`catalogue.py` lists them; each has the interface `plan.Plan`; its input is in `problem.py`.
All pure.
"""
