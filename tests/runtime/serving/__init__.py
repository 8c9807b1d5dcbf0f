"""Tests of predict requests through real pods."""
