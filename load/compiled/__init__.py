"""The hot code of a simulation compiled ahead of time by mypyc, from the very sources that serve.

    python -m load.compiled MODULE [ARGUMENT...]

runs a module (`benchmarks`, `pilotlight`) like `python -m`, with the compiled code where there is a
C compiler, and says on standard error which of the two it runs.
"""
