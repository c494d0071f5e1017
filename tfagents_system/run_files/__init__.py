"""What lies in a run directory: its paths, its inputs, its lock, heartbeats, metrics and checkpoints."""
