"""The scheduler's process: its HTTP interface, runs, placement of their steps, and the journal."""
