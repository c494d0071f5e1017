"""On sys.path beside users' code, see sac_params.py."""
