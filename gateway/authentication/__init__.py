"""Authentication and authorisation: API keys and tokens of identity providers, per tenant."""
