"""Arrow batches of messages: columns of their places and UUIDs, and of their documents.

Requires pyarrow and numpy. Imports `message.envelopes` and below; only `uuids` takes numpy alone.

A thread makes columns in steps, where the core and pyarrow release the interpreter lock; much JSON
is parsed by the core's threads, which took 0.7 times as long on two processors. In Spark, each task
has one thread. Decoding envelopes in a thread was declined: the lock makes it no faster.
"""
