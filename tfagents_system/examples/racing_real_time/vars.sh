# shellcheck shell=bash
# A car learns to race in wall time, 20 steps a second: hours. A variable that is set already wins over its value here.
: "${SAC_EXP_NAME:=racing_real_time}"        # the run directory is logs/<name>
: "${SAC_PARAMS:=params.py}"                 # class TrainParams(TrainParamsBase)
: "${SAC_CONFIG:=config.json}"               # horizon, the race, its pace and its delays
: "${SAC_REVERB_CPUS:=1}"                    # CPUs of the replay server
: "${SAC_TRAIN_CPUS:=1}"                     # CPUs of the policy updates
: "${SAC_NUM_COLLECT_WORKERS:=1}"            # one for each car
: "${SAC_COLLECT_WORKER_CPUS:=1}"            # CPUs of each of them, and of its car
: "${SAC_SHARE_CPUS:=1}"                     # roles share CPUs where there are too few
: "${SAC_SEED:=0}"                           # decides every other seed
