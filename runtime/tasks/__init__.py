"""What models do with a request: one module per task, `task.py` says what each must offer."""
