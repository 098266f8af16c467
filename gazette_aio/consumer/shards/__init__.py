"""Shards of a member: from assignments to replicas that recover, process messages and fail.

Imports `consumer.transactions`, `consumer.allocator`, `consumer.keyspace`, `consumer.application`,
`consumer.recoverylog`, and outside of consumers `message`, `client`, `aio` and `protocol`.
"""
