#!/usr/bin/env bash
# Builds the image of container/Dockerfile and trains in it, also where no registry of images can be reached.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/container.sh [--builder docker|podman|buildah] [--base IMAGE] [--target train|tests]

Builds container/Dockerfile and runs `./run_script.sh training_variables.sh` for two iterations in it, as another user than root,
with a read-only package; in the stage `tests` it runs fast tests instead.
  --builder      docker, podman, or buildah (as root; needs no daemon, no cgroups and no namespaces); otherwise what works here
  --base IMAGE   instead of docker.io/library/debian:12-slim
  --base debian  makes that image by mmdebstrap from Debian's packages, for buildah
HELP
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
cd "$root"
builder='' base='' target=train image=localhost/sac_test
while (($#)); do
  case $1 in
    --builder) builder=$2 && shift 2 ;;
    --base) base=$2 && shift 2 ;;
    --target) target=$2 && shift 2 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done
if [[ $base == debian ]]; then builder=buildah; fi
for name in docker podman buildah; do
  if [[ -z $builder ]] && "$name" info >/dev/null 2>&1; then builder=$name; fi
done
[[ $builder ]] || { echo "error: none of docker, podman and buildah works here: apt-get install buildah" >&2 && exit 2; }

options=(--file container/Dockerfile --target "$target" --tag "$image")
if [[ $base == debian ]]; then
  archive=$(mktemp --suffix=.tar)
  trap 'rm -f "$archive"' EXIT
  mmdebstrap --quiet --variant=minbase --components=main bookworm - >"$archive"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$archive" /
  certificates=/usr/local/share/ca-certificates # Of this machine, such as a proxy's.
  if [[ -d $certificates ]]; then buildah add --quiet "$container" "$certificates" "$certificates"; fi
  buildah commit --quiet --rm "$container" localhost/debian_base
  base=localhost/debian_base
fi
if [[ $base ]]; then options+=(--build-arg "BASE=$base"); fi

command=(./run_script.sh training_variables.sh --set num_iter=2)
if [[ $target == tests ]]; then command=(./run_tests.sh --area checks); fi
if [[ $builder == buildah ]]; then
  buildah build --layers --isolation chroot --network host "${options[@]}" .
  container=$(buildah from "$image")
  trap 'buildah rm "$container" >/dev/null; rm -f "${archive:-}"' EXIT
  buildah run --isolation chroot --network host --user 1000 "$container" -- "${command[@]}"
  if [[ $target == train ]]; then
    buildah run --isolation chroot --user 1000 "$container" -- \
      sh -c "test ! -w /opt/sac && test -s /logs/pendulum/metrics.csv && sac doctor"
  fi
else
  "$builder" build "${options[@]}" .
  "$builder" run --rm --init --shm-size 1g "$image" "${command[@]}"
fi
