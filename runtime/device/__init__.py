"""The device: its memory, and the worker that runs one batch at a time."""
