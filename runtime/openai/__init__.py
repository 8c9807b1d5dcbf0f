"""OpenAI's protocol at the pod: request bodies, response documents, endpoints, routes."""
