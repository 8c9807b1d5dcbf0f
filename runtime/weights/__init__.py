"""The tensors of a model in files and in memory."""
