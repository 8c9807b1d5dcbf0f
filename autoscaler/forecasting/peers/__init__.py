"""Known ways of forecasting, behind the same interface, for the back-test to compare with."""
