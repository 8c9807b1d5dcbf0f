"""A discrete-event simulator in virtual time that runs the policies of production."""
