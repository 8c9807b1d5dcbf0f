"""On a GPU: copies from host, serving beside a load, memory after many loads and unloads."""
