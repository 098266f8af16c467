"""Arrow batches of messages: columns of their places and UUIDs, and of their documents.

Requires pyarrow and numpy. Imports `message.envelopes` and below; only `uuids` takes numpy alone.
"""
