"""Published routing policies, as plug-ins of the gateway."""
