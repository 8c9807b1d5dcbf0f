"""Experiments after Elvinger 2024: plans of all planners on one to eight V100."""
