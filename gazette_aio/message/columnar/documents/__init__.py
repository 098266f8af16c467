"""Documents of messages as Arrow columns, by format: JSON, CSV, and protobuf.

Imports `message.adapters` and `protocol`; takes pyarrow.
"""
