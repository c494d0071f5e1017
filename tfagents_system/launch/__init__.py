"""From a vars file to running processes: checks, CPU plan, supervision, sweeps."""
