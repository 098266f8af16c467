"""Execution of plans: reading every byte of a range, and making the rows of a task."""
