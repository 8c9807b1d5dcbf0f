"""What on a cluster or on this machine would keep Pilotlight from working, and the way out."""
