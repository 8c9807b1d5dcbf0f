"""The web console: server-rendered pages, their live updates, and the documents behind both."""
