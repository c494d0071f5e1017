# shellcheck shell=bash
# The vars file of `sac train PARAMS.py --config JSON`; `sac new` copies its lines. A variable that is set already wins.
: "${SAC_REVERB_CPUS:=1}"                  # CPUs of the replay server
: "${SAC_TRAIN_CPUS:=2}"                   # CPUs of the policy updates
: "${SAC_NUM_COLLECT_WORKERS:=2}"          # programs that collect experience and evaluate
: "${SAC_COLLECT_WORKER_CPUS:=1}"          # CPUs of each of them
: "${SAC_SHARE_CPUS:=1}"                   # roles share CPUs where there are too few
: "${SAC_SEED:=0}"                         # decides every other seed
