"""Streams: positions of queries, how far their batches go, and what Spark asks of a source."""
