"""Etcd as the key-value store of consumers: a thin client over gRPC.

Imports `consumer.keyspace`, and of `client` the options of TLS and the making of channels.
"""
