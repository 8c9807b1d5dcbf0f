"""The registry in Redis: its operations as server-side scripts, and the copy kept up to date."""
