"""Commands for neither journals nor shards.

May import `cli.shell`.
"""
