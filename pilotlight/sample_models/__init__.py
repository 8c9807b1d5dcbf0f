"""Makes models with random weights on this machine, without any download."""
