"""python -m tfagents_system.report COMMAND ...: reports on runs from their files.

status: the state of runs. plots: learning_curve.png of each. compare: curves of several runs together, and a table.
page: report.html of one run or of several.
"""

from __future__ import annotations

import importlib
import sys

from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, exit_with

_MODULES = {"status": "status", "plots": "plots", "compare": "compare", "page": "page.write"}
_USAGE = f"Usage: python -m tfagents_system.report {{{','.join(_MODULES)}}} ... (each has --help)"


def main() -> int:
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(_USAGE)
        return EXIT_DONE
    if len(sys.argv) < 2 or sys.argv[1] not in _MODULES:
        print(_USAGE, file=sys.stderr)
        return EXIT_BAD_INPUT
    # Imported on demand: a status needs neither NumPy nor matplotlib.
    module = importlib.import_module(f"tfagents_system.report.{_MODULES[sys.argv[1]]}")
    code: int = module.main(sys.argv[2:])
    return code


if __name__ == "__main__":
    exit_with(main)
