"""The parts of the experiments `burst` and `spike`: pods that come and go in a simulated pool."""
