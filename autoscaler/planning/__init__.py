"""The vocabulary of planning: what a policy sees of a pool, and what it can ask for. All pure."""
