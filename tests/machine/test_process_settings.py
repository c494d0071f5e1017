"""What a user's code sets for its whole process: what would end or deafen a role is put back or refused."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from tfagents_system.machine import process_settings
from tfagents_system.machine.process_settings import faults, kept
from tfagents_system.settings.load_params import load_params

PARAMS = """
import signal, sys, warnings
import numpy
from tfagents_system.train_params_base import TrainParamsBase
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "of a simulator")
numpy.seterr(divide="raise", invalid="ignore")
signal.signal(signal.SIGTERM, signal.SIG_IGN)

class TrainParams(TrainParamsBase):
    def __init__(self, env_config):
        super().__init__(env_config)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def env_ctor(self, *args, seed=None, **kwargs):
        return None
"""


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process_settings, "changes", {})
    with np.errstate(), warnings.catch_warnings():
        yield


def test_params_can_not_make_warnings_and_rounding_raise_in_our_code_nor_take_its_stop_signals(tmp_path: Path) -> None:
    (tmp_path / "params.py").write_text(PARAMS)
    handler = signal.getsignal(signal.SIGTERM)
    warnings.resetwarnings()
    load_params(tmp_path / "params.py", {"horizon": 3})
    assert [entry[0] for entry in warnings.filters] == ["ignore"], "what silences a simulator stays"
    with pytest.warns(UserWarning, match="of a library"):
        warnings.warn("of a library", stacklevel=1)
    modes = np.geterr()
    assert (modes["divide"], modes["invalid"]) == ("warn", "ignore")
    assert signal.getsignal(signal.SIGTERM) is handler and signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    assert list(process_settings.changes) == [
        "signal.signal(SIGTERM, ...)", 'warnings.simplefilter("error")', 'numpy.seterr(...="raise")',
        "signal.signal(SIGPIPE, ...)",
    ]  # fmt: skip


def test_what_was_so_before_stays(tmp_path: Path) -> None:
    """Such as warnings that a caller's own tests turn into errors."""
    warnings.simplefilter("error")
    np.seterr(over="raise")
    with kept():
        warnings.filterwarnings("error", "another")
    assert warnings.filters[0][0] == "error" and warnings.filters[0][1] is None
    assert np.geterr()["over"] == "raise" and list(process_settings.changes) == ['warnings.simplefilter("error")']


def test_it_is_put_back_where_the_code_raises() -> None:
    with pytest.raises(KeyError), kept():
        np.seterr(all="raise")
        raise KeyError
    assert np.geterr()["divide"] == "warn"


def test_a_thread_has_no_handlers_to_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_settings.threading, "current_thread", object)
    with kept():
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert signal.signal(signal.SIGUSR2, before) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("owner", "name", "value", "setting"),
    [
        (tf.keras.backend, "floatx", "float64", "float64 (set_floatx)"),
        (tf.keras.backend, "image_data_format", "channels_first", "channels_first (set_image_data_format)"),
        (tf, "executing_eagerly", False, "graph mode (disable_eager_execution or a Graph)"),
        (config, "is_op_determinism_enabled", True, "deterministic operations (enable_op_determinism, "),
        (tf.distribute, "has_strategy", True, "a distribution strategy (set_strategy)"),
        (tf.config, "get_visible_devices", [], "no CPU (set_visible_devices)"),
        (
            tf.keras.mixed_precision,
            "global_policy",
            tf.keras.mixed_precision.Policy("mixed_bfloat16"),
            "mixed_bfloat16 (set_global_policy)",
        ),
    ],
)
def test_settings_of_tensorflow_with_which_roles_fail_are_told_with_their_remedy(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any, setting: str
) -> None:
    assert faults() == []
    monkeypatch.setattr(owner, name, lambda *_: value)
    (fault,) = faults()
    assert fault.startswith(f"params or environment set for the whole process {setting}")
    assert ": remove that (from what they import" in fault


def test_without_tensorflow_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow")
    assert faults() == []
