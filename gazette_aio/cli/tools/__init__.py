"""Commands that look after neither journals nor shards.

They may import `cli.shell`.
"""
