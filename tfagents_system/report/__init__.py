"""What the user sees: heartbeats, metrics, terminal view, status, plots."""
