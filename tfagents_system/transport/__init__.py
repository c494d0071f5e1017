"""What passes between the roles: segments, the tables of the Reverb server, connections to it."""
