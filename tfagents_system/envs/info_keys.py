"""Keys of an environment's info that training looks at."""

LOG_PREFIX = "log/"  # Numbers under such keys are averaged over an episode.
SUCCESS_KEYS = ("is_success", "success")
