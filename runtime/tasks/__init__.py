"""What models do with a request: a module per task; `task.py` has the interface of all of them."""
