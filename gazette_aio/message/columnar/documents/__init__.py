"""Documents of messages as Arrow columns, by format: JSON, CSV, and protobuf.

Imports `message.columnar`, `message.adapters` and `protocol`.
"""
