"""The experiment traces: public traces under every routing policy."""
