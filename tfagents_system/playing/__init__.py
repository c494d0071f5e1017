"""Uses of a saved policy: videos, and files for other runtimes."""
