"""Publishing: messages, batches and tables, by themselves or in transactions.

Imports `message.adapters`, `message.framing` and `message.mapping`, `client`, `aio` and `protocol`;
tables import `message.columns` as well, on first use.
"""
