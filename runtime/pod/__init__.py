"""One pod: its components, their composition and the lifecycle."""
