"""Published planners of placements, as plug-ins of the autoscaler."""
