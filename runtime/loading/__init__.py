"""Loads of models to the device: one per model at a time, within the memory budget."""
