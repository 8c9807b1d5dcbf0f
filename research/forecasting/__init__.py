"""Back-tests of arrival forecasts, and the forecasts of papers to compare with."""
