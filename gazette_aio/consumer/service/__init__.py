"""Members of consumers: their service, their process and its settings, and how they stop.

Imports all other rooms of `consumer`, `client`, `serving`, `aio` and `protocol`.

A leaving member waits for users' code only so long: unreleased resolutions, `destroy()`, tasks and
hooks that resist cancellation are left behind, and logged. Its lease would otherwise hold its
shards for ever. Signals are handled before it joins.
"""
