"""What every check of input uses: rules in words, near misses of names, and the list of what was looked at."""
