"""What a user says, read and checked: TrainParams, the JSON, SAC_ variables, grids and overrides."""
