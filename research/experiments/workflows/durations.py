"""How long the simulated runs of the experiments on workflows last, and their seeds."""

from typing import Final

MINUTES: Final = 10
"""Set after first results."""
TIMES_LONGER: Final = {"gentd26": 12}
"""The trace's two hours: a request takes ten times as long as the others', so few come."""
CHANGE_MINUTES: Final = 20
"""Of figure 10, with the change in the middle: the paper's two hours, shortened."""
SEEDS: Final = (21, 22, 23, 24, 25)
"""Others than those on which policies were chosen (1 to 5, 11 to 15)."""
