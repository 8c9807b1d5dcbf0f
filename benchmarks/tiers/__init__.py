"""Cold starts of T5 from disk, host and S3 to a usable network, against the usual ways to load."""
