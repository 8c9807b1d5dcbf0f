"""Loading policies: which model is brought to which pod, and which leaves. One rule per file."""
