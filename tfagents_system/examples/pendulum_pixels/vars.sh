# shellcheck shell=bash
# Pendulum from its pictures: half an hour on two CPUs. A variable that is set already wins over its value here.
: "${SAC_EXP_NAME:=pendulum_pixels}"         # the run directory is logs/<name>
: "${SAC_PARAMS:=params.py}"                 # class TrainParams(TrainParamsBase)
: "${SAC_CONFIG:=config.json}"               # horizon, environment arguments, curriculum
: "${SAC_REVERB_CPUS:=1}"                    # CPUs of the replay server
: "${SAC_TRAIN_CPUS:=2}"                     # CPUs of the policy updates
: "${SAC_NUM_COLLECT_WORKERS:=2}"            # programs that collect experience and evaluate
: "${SAC_COLLECT_WORKER_CPUS:=1}"            # CPUs of each of them
: "${SAC_SHARE_CPUS:=1}"                     # roles share CPUs where there are too few
: "${SAC_SEED:=0}"                           # decides every other seed
