"""The report's plots: each module makes figures of runs, or says why it cannot."""
