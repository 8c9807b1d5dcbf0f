"""Machines and pods of a simulated cluster: request stages, model loads, devices and links."""
