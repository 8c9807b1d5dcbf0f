"""What the pod says to the registry, and what it reads there."""
