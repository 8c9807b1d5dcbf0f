"""What all packages share and none owns: processes, HTTP, tensors, TLS, settings, logs."""
