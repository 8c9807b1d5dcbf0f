"""A whole platform on one machine: starts, supervises and stops the processes of all parts."""
