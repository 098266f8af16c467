"""Rows of Spark made from messages: formats, decoding, and inference of schemas."""
