"""Gazette as a data source and sink of Apache Spark."""
