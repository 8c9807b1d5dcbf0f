"""Wolfrath et al. 2025: selection policies on windows of real examples, and the paper's figures."""
