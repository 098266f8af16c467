"""Workloads which look for broken invariants under faults, for as long as one likes."""
