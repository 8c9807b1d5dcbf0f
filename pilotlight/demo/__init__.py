"""The demo: the main job of the platform, and the workloads of Liu 2025, with real processes."""
