"""Tokens of identity providers (JWT): who is trusted for whom, and what a token is good for."""
