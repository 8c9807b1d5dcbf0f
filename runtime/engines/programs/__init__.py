"""Exported programs (`torch.export`), read without unpickling; optional, imported on first use."""
