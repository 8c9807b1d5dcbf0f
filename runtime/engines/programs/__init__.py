"""Programs of `torch.export`, read and run without unpickling anything."""
