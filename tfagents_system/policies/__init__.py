"""Policies as workers run them and as they are saved."""
