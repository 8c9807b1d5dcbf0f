"""Tests of back-tests."""
