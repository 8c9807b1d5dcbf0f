"""Models that a server beside the pod runs: any that speaks V2 with the repository extension."""
