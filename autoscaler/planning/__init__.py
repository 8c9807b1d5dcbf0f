"""Input and output of policies: views of a pool with its demand, and actions. All pure."""
