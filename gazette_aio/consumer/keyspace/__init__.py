"""Key space: the specs, members and assignments of a group of consumers, in Etcd or embedded.

Imports `aio` and `protocol`; the room `etcd` states what else it may import.
"""
