"""Where the tensors of a model lie in files and in memory."""
