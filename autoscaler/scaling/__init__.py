"""How many pods a pool has, and which limits contradict each other. All pure."""
