"""Loading policies: which models are loaded on which pods, and which are demoted. One per file."""
