"""TMRL's configuration and commands: docs/how_to/tmrl.md."""
