"""What a simulated run writes: records, and the summary of a live run."""
