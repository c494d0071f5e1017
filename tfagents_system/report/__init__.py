"""What the user sees: terminal view, status, plots, comparisons."""
