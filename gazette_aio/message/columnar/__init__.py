"""Messages as columns: split, sequenced and decoded a batch at a time.

All of it is pure, and takes numpy; what makes Arrow data takes pyarrow as well. Both come with
`pip install gazette-aio[arrow]`.
"""
