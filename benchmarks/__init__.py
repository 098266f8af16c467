"""Hot paths measured against their yardsticks; `python -m benchmarks` runs them."""
