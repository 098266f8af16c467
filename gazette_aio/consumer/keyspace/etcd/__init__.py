"""Etcd as the key-value store of consumers: a thin client over gRPC.

Imports `consumer.keyspace`, and of `client` the options of TLS and the making of channels.

Messages of Etcd have a package of their own, so that another client of Etcd can be in the process.
A write is repeated only if Etcd surely didn't look at it; callers read back the result of an
unknown outcome. Only configured endpoints are called: an address that Etcd advertises may lead
nowhere from here. Stores are fenced whatever the lease says, because no lease keeps a paused
process from awakening.
"""
