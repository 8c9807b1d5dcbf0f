"""Tests of the scheduler of workflows: real processes, with fake pods in place of devices."""
