"""OpenAI's protocol at the pod: bodies, answers, errors, routes."""
