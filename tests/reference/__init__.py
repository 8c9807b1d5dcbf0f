"""Answers compared with those of the libraries that models come from: `make test-reference`."""
