"""SLURM: submitting runs as jobs and arrays, and requeueing them until they are finished."""
