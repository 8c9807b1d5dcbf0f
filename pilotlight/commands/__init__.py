"""The verbs of the command line, one concept per file."""
