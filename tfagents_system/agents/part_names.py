"""The parts of an agent by name, as settings and files name them. This module imports no TensorFlow."""

from __future__ import annotations

ACTOR, CRITICS, ENCODER = "actor", "critics", "encoder"
ALPHA, NORMALIZER, OPTIMIZERS = "alpha", "normalizer", "optimizers"

# What a run can take from another agent; all but the last where it does not say.
AGENT_PARTS = (ACTOR, CRITICS, ENCODER, NORMALIZER, ALPHA, OPTIMIZERS)
USUAL_PARTS = AGENT_PARTS[:-1]
