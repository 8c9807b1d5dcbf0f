"""The number of pods of a pool, and checks of limits. All pure."""
