"""Publishing what Spark hands over, and deciding on it exactly once."""
