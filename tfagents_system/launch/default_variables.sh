# shellcheck shell=bash
# The vars file of `sac train PARAMS.py --config JSON`, which says SAC_EXP_NAME, SAC_PARAMS and SAC_CONFIG; `sac new` copies
# its lines. A variable that is set already wins over its value here.
: "${SAC_REVERB_CPUS:=1}"                  # CPUs of the replay server
: "${SAC_TRAIN_CPUS:=2}"                   # CPUs of the policy updates
: "${SAC_NUM_COLLECT_WORKERS:=2}"          # programs that collect experience and evaluate
: "${SAC_COLLECT_WORKER_CPUS:=1}"          # CPUs of each of them
: "${SAC_SHARE_CPUS:=1}"                   # roles share CPUs where there are too few
: "${SAC_SEED:=0}"                         # decides every other seed
