"""What runner and scheduler exchange, and how calls are written in it."""
