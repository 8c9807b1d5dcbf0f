"""The face of Pilotlight: the command line, the platform on one machine, the demo."""
