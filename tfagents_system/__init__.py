"""Soft Actor-Critic training with TF-Agents: a replay server, a trainer and N workers."""

import contextlib
import os
import sys

__version__ = "0.1.0"
OWN = "TFAGENTS_OWN_"  # Before the name of a user's variable that a launcher has set otherwise.


# A launcher's process gets the user's PYTHONPATH. Its own modules continue to come first, see lead_python_path.
if _python_path := os.environ.pop(f"{OWN}PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = _python_path
    sys.path += [folder for folder in _python_path.split(os.pathsep) if folder not in ("", *sys.path)]

# Reverb's gRPC sends connections to loopback to http_proxy, https_proxy or grpc_proxy, too, and compares the ends of
# names: `localhost` in no_proxy does not help. no_grpc_proxy precedes no_proxy and concerns gRPC alone.
_NO_PROXY = "no_grpc_proxy"
_hosts = os.environ.get(_NO_PROXY, os.environ.get("no_proxy", "")).split(",")
if "127.0.0.1" not in _hosts:
    os.environ[_NO_PROXY] = ",".join([*filter(None, _hosts), "127.0.0.1"])

# TensorFlow reads it when it is imported. Its default is off on CPUs without AVX512-VNNI, where oneDNN's products with
# a transposed operand, of which gradients are made, are a fifth faster all the same.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# TensorFlow reads it when it is imported, too: a script that loads a policy prints no lines of its start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# gym 0.23, which TF-Agents imports, prints on every import that it is unmaintained.
with contextlib.suppress(ImportError):
    from gym_notices import notices

    notices.notices.clear()


__all__ = ["RunFailedError", "UserError", "load_run", "train"]


def __getattr__(name):  # type: ignore[no-untyped-def]
    """The public names, imported where they are used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("tfagents_system.python_run"), name)
