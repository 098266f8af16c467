"""RPCs without retries: methods of the service, connections, routes and streams of responses.

Imports options, retries and status of `client`, `aio` and `protocol`.
"""
