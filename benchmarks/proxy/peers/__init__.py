"""The peers that are Python programs; each is started as a process of its own."""
