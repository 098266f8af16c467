"""Documents of messages as Arrow columns, by format: JSON, CSV, and protobuf.

Imports `message.columns`, `message.adapters` and `protocol`.

The core makes rows of JSON documents that surely fit their columns, and refuses all others without
a reason. `json_cursor` decides on these, and words their errors, so that both forms of the core
have the same results. In plain Python, all documents are refused. pyarrow's JSON parser was
declined: it takes three times as long, crashes on blocks of nulls, skips blank lines, and takes two
documents of a line for two rows.
"""
