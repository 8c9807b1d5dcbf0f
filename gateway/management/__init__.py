"""Every endpoint but inference: model lists, health, metrics, explanations, OpenAPI."""
