"""Rows of Spark, made of messages."""
