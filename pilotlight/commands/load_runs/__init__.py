"""`load run` and `report`: play a trace and record every request; compare the records of runs."""
