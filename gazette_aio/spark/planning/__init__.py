"""Planning of batches: from options and filters to journals, ranges, tasks and partitions."""
