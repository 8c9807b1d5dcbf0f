"""Applications (SneakPeek): which variant of a model answers, by accuracy and deadline."""
