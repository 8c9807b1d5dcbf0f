"""Tests of front processes: their messages, and whole pods that have some."""
