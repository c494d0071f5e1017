"""Keys of an environment's info that training uses."""

LOG_PREFIX = "log/"  # Numbers under such keys are averaged over an episode.
SUCCESS_KEYS = ("is_success", "success")
