"""The life of one pod: its components put together, run, and taken down."""
