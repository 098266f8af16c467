"""Columns of messages: UUIDs, payloads, documents and record batches, made a batch at a time.

Pure. It needs numpy and pyarrow (`pip install gazette-aio[arrow]`). Imports `message.sequencing`,
`message.envelopes`, `message.adapters`, `message.framing` and `protocol`.
"""
