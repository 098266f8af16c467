"""Streams: positions of queries, plans of their batches, and the readers which Spark calls."""
