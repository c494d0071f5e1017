"""A car on drawn tracks: tracks, car, sensors, environment and driver."""
