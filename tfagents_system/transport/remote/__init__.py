"""Between machines: an encrypted, mutually authenticated way to the tables of a run."""
