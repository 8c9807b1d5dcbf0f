"""What the experiments after Liu 2025, chapter 6, share: workloads, the thesis's figures, runs."""
