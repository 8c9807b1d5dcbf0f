"""The parts of the experiment `prewarming`: forecasts of a trace, runs, and their comparison."""
