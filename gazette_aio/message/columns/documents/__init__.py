"""Documents of messages as Arrow columns, by format: JSON, CSV, and protobuf.

Imports `message.columns`, `message.adapters` and `protocol`.
"""
