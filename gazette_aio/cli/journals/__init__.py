"""Commands of journals: specs and listings, content, fragments and heads.

It may import `cli.specs` and `cli.shell`.
"""
