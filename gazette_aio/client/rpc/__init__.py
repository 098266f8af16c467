"""RPCs: the service's methods, channels, routes and streams, without retries.

Imports the modules of `client` itself, `aio` and `protocol`.
"""
