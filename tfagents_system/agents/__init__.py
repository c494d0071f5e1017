"""Networks and the SAC update."""
