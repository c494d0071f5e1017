"""What is done with a saved policy: videos, and files for other runtimes."""
