"""Parts of journal spaces which shard spaces share: YAML documents, and the algebra of specs.

Imports messages, labels, texts and errors of `protocol`; reads specs by the descriptions of their
messages.
"""
