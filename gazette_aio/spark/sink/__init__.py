"""The sink: publishing the rows of tasks, and deciding batches exactly once.

Declined: deterministic UUIDs (Spark doesn't promise the same rows in the same tasks), and registers
as fences (empty registers match everything).
"""
