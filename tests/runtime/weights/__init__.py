"""Tests of reading weights from files."""
