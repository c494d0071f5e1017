"""Examples, one folder each: `params.py` is its SAC_PARAMS. `training_variables*.sh` and `config/` name them."""
