"""Settings that hold for every test: quiet TensorFlow, no GPU, the same random inputs in every run."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile("seeded", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("seeded")
