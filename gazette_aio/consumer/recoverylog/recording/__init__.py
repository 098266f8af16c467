"""Recorders: files change locally, and each change is appended to a recovery log in the same order.

Threads record and never wait for the network; the event loop appends what they hand over. Imports
`aio`, `client`, `protocol` and the pure modules of `recoverylog`, nothing of `playing`.
"""
