"""Published loading policies, as plug-ins of the autoscaler."""
