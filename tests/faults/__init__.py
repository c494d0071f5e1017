"""Faults caused on purpose in a real run, and what they cost: `python -m tests.faults --minutes 10`."""
