"""Networks of transformers, built from their configuration without weights."""
