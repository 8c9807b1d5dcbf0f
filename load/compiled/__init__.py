"""The code that every simulated request runs through, compiled by mypyc from the same sources.

    python -m load.compiled MODULE [ARGUMENT...]

runs a module (`benchmarks`, `pilotlight`) like `python -m`, with the compiled code if there is a C
compiler; standard error shows whether the code is compiled or plain Python.
"""
