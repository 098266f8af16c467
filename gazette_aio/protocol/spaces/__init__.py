"""Parts of journal spaces which shard spaces share: YAML documents, and the algebra of specs.

Imports labels, texts and errors of `protocol`; knows no type of spec.
"""
