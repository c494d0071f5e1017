"""Environments of any kind behind one interface, and the curriculum of their parameters."""
