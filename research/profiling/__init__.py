"""Slowdowns by share of an accelerator and by neighbour, as the verb `profile-sharing`."""
