"""Who may call: API keys and tokens of identity providers, per tenant."""
