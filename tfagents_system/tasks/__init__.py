"""Many runs: grids, seeds and searches are lists of tasks, which one pool runs."""
