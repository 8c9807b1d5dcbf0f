"""Records and summary of a simulated run."""
