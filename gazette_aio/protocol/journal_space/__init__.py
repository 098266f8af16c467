"""Journal specs: their algebra, and journal spaces as YAML.

Imports validation and the generated messages of `protocol`.
"""
