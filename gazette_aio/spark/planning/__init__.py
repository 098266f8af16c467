"""What a batch reads: from options and filters to journals, ranges, tasks and partitions."""
