"""Text generation token by token: the engine's interface, transformers' engine, decoding."""
