"""Old names of modules, for users' files and commands: `tfagents_system.curriculum` is in `envs/` now."""

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any, Optional, Sequence

PACKAGE = "tfagents_system."
MOVED = {
    "channel": "transport.remote",
    "channel.check": "transport.remote.check",
    "channel.credentials": "transport.remote.credentials",
    "channel.machines": "transport.remote.machines",
    "curriculum": "envs.curriculum",
    "envs.minitaur": "examples.minitaur.environment",
    "grid": "settings.grid",
    "halfcheetah_params": "examples.halfcheetah.params",
    "info_keys": "envs.info_keys",
    "launch.run_paths": "run_files.run_paths",
    "launch.variables": "settings.variables",
    "load_params": "settings.load_params",
    "minitaur_params": "examples.minitaur.params",
    "montage": "playing.montage",
    "other_libraries": "settings.other_libraries",
    "overrides": "settings.overrides",
    "pendulum_params": "examples.pendulum.params",
    "pendulum_pixels_params": "examples.pendulum_pixels.params",
    "report.metrics": "run_files.metrics",
    "run_checkpoints": "run_files.run_checkpoints",
    "saved_run": "playing.saved_run",
}


class _Loader:
    """No subclass of one in importlib.abc, whose import would be half of what `import tfagents_system` costs."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        pass  # As for any module of Python code.

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._name)

    def get_code(self, name: str) -> Any:
        """For `python -m`."""
        spec = importlib.util.find_spec(self._name)
        assert spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        return spec.loader.get_code(self._name)


class _Finder:
    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Finds a module by its old name."""
        if not name.startswith(PACKAGE) or name[len(PACKAGE) :] not in MOVED:
            return None
        loader: Any = _Loader(PACKAGE + MOVED[name[len(PACKAGE) :]])
        return importlib.machinery.ModuleSpec(name, loader, is_package=name == PACKAGE + "channel")


def install() -> None:
    """Makes Python find modules by their old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
