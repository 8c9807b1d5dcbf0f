"""Published selection policies, as plug-ins of the gateway."""
