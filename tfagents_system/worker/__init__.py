"""A worker: its environments, its episodes, and the segments that it sends."""
