"""The replay server: segments into a ring of steps, minibatches out."""
