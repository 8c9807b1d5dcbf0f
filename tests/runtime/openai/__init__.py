"""Tests of OpenAI's routes through real pods."""
