#!/usr/bin/env bash
# The lowest or the highest versions that pyproject.toml allows, in an environment of their own: a training run and fast tests.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/versions.sh lowest|highest [PYTEST_ARGUMENT...]

Resolves pyproject.toml to the lowest or highest versions of its ranges, installs these into a temporary folder (4 GB), trains
Pendulum for six iterations, and runs the fast tests, or pytest with the arguments given. Needs the network and uv.
HELP
}

case ${1:-} in
  lowest) resolution=lowest-direct ;;
  highest) resolution=highest ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
shift

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$root"
say() { echo "== $*" >&2; }

# As the lock has them: all that can be installed beside each other.
extras=()
for extra in dev experience onnx wandb mlflow tuning docs; do extras+=(--extra "$extra"); done
say "resolving the $resolution versions"
uv pip compile --quiet --resolution "$resolution" --python-version 3.11 --no-annotate --no-header \
  "${extras[@]}" --output-file "$folder/versions.txt" pyproject.toml
diff requirements.lock "$folder/versions.txt" | grep '^[<>]' || true

say "installing them into $folder/env"
uv venv --quiet --python 3.11 "$folder/env"
uv pip install --quiet --compile-bytecode --python "$folder/env/bin/python" --requirement "$folder/versions.txt"
export VIRTUAL_ENV=$folder/env PATH=$folder/env/bin:$PATH PYTHONPATH=$root
unset SAC_PYTHON CONDA_PREFIX

say "training Pendulum"
SAC_LOGS_DIR=$folder/logs ./run_script.sh training_variables.sh --set num_iter=6

if (($# == 0)); then set -- -m "not slow" -n 2 --dist loadfile; fi
say "pytest $*"
"$folder/env/bin/python" -m pytest "$@"
