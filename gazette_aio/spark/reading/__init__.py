"""Execution of plans: reading every byte of a range, and making the rows of a task.

Rows come from the same content and core as Arrow batches; only the outputs differ. Batches have
exactly Spark's schema, because its workers check it. A bounded read ends after its last byte, or
reports what's missing.
"""
