"""Environments of any kind behind one interface."""
