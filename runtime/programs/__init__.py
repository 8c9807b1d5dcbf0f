"""Programs of `torch.export`: read without unpickling, checked, and run with tensors in and out."""
