"""Front processes: HTTP, decoding, tokenising and encoding, before the pod's device process."""
