"""Players: a recovery log is read, and its files are recovered as it tells.

`playback` decides what to read next and what happens to files; the others read and write. Imports
`aio`, `client`, `protocol` and the pure modules of `recoverylog`, nothing of `recording`.
"""
