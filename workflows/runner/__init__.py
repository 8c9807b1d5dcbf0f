"""The process that executes one workflow's file: its runs, and the limits around them."""
