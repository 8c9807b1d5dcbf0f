"""Answering requests: stages, remote inference, generation, the model repository."""
