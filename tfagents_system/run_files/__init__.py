"""What a run directory holds: its paths, its inputs, its lock, heartbeats, metrics and checkpoints."""
