"""HTTP connections to pods, and to receivers of events."""
