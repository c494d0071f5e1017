"""What a run holds of its machine and its kernel: CPUs, GPUs, ports, memory, signals, processes."""
