"""From a vars file to running processes: variables, CPU plan, run directory, supervision."""
