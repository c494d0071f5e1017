"""The params file in processes that a user's code starts anew (spawn, forkserver, loky): these import its classes by
the name of their module, which every process of a run makes itself.

Under SAC_ENV_PYTHON, too: Python 3.9.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

_package = Path(__file__).resolve().parents[2]
if importlib.util.find_spec(_package.name) is None:  # Another Python than the toolkit's does not find it by itself.
    _spec = importlib.util.spec_from_file_location(_package.name, _package / "__init__.py")
    assert _spec is not None and _spec.loader is not None
    sys.modules[_package.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_package.name])

from tfagents_system.settings.load_params import LOADED, load_params_class  # noqa: E402

load_params_class(*map(Path, json.loads(os.environ[LOADED])))
