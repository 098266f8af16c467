"""What a Publisher is made of: routes, batches, and tables as batches."""
