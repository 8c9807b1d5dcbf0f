"""Tests of the engines: transformers networks, exported programs, diffusion."""
