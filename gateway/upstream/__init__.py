"""HTTP connections to pods."""
