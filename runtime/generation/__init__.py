"""Making text token by token: what an engine is, the one of transformers, tokens to text."""
