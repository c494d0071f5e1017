"""The report of runs as one self-contained HTML file."""
