"""Reading what was planned: every byte of a range, and the rows of a task."""
