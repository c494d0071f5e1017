"""Keys of an environment's info that training uses."""

LOG_PREFIX = "log/"  # Numbers under such keys are averaged over an episode.
RECORD_PREFIX = "record/"  # What is under such keys is kept of each step where episodes are recorded.
SUCCESS_KEYS = ("is_success", "success")
EVALUATION = "evaluation"  # In the options of a device's reset(): the episode is of an evaluation,
EVALUATION_EPISODE = "episode"  # and which of its episodes it is.
