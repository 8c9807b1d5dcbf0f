"""The device: its memory, its queue, and the worker that runs one batch at a time."""
