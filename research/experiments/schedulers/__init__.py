"""The experiment warsaw: the schedulers of Blinowski et al. 2024, chapter 6."""
