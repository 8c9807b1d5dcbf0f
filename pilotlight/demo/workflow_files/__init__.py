"""The workflows of the demo, as a user would write them."""
