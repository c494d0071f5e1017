# shellcheck shell=bash
# The vars file of `sac train PARAMS.py --config JSON`, which says SAC_EXP_NAME, SAC_PARAMS and SAC_CONFIG. What the
# environment already says wins over these values.
: "${SAC_REVERB_CPUS:=1}"
: "${SAC_TRAIN_CPUS:=2}"
: "${SAC_NUM_COLLECT_WORKERS:=2}"
: "${SAC_COLLECT_WORKER_CPUS:=1}"
: "${SAC_SHARE_CPUS:=1}"
: "${SAC_SEED:=0}"
