"""Tests of the tiers host and disk, and of eviction."""
