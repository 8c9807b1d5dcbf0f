"""The training of looks at applications' data (SneakPeek), as the verb `sneakpeek train`."""
