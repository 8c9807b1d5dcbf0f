"""Which pod each load goes to, and which idle copies make room for it. All pure.

A planner that places all models at once (an optimisation, a packing rule) belongs here.
"""
