"""On a GPU: copies from host, cold starts, serving beside a load, memory after many unloads."""
