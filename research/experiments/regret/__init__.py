"""The experiment regret: `auto` against every fixed policy in clusters drawn at random."""
