"""Experience: segments in, a ring of steps, minibatches out, over Reverb."""
