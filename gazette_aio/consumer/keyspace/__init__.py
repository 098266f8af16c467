"""Key space: the specs, members and assignments of a group of consumers, in Etcd or embedded.

Imports `aio` and `protocol`.
"""
