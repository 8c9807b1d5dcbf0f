"""The text that names a trace: its syntax, and the trace it stands for."""
