"""The sink: publishing the rows of tasks, and deciding batches exactly once."""
