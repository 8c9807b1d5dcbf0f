"""The report's plots: each function returns a figure of runs, or why it is left out."""
