"""The registry in memory, with the meaning of the Redis scripts."""
