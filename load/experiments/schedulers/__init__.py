"""The parts of the experiment `warsaw`: models, workload, schedulers, runs, figures and plot."""
