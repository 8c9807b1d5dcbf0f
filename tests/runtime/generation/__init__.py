"""Tests of text generation: sampling, decoding, the engine."""
