"""The face: the command line and the one-machine platform."""
