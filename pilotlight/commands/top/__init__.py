"""The command `top`: the overview of the web console in a terminal."""
