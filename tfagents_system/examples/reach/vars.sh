# shellcheck shell=bash
# A point that is to be moved to a goal, with hindsight: about two minutes of one CPU. A variable that is set already
# wins over its value here.
: "${SAC_EXP_NAME:=reach}"                   # the run directory is logs/<name>
: "${SAC_PARAMS:=params.py}"                 # class TrainParams(TrainParamsBase)
: "${SAC_CONFIG:=config.json}"               # horizon, environment arguments, curriculum
: "${SAC_REVERB_CPUS:=1}"                    # CPUs of the replay server
: "${SAC_TRAIN_CPUS:=1}"                     # CPUs of the policy updates
: "${SAC_NUM_COLLECT_WORKERS:=1}"            # programs that collect experience and evaluate
: "${SAC_COLLECT_WORKER_CPUS:=1}"            # CPUs of each of them
: "${SAC_SHARE_CPUS:=1}"                     # roles share CPUs where there are too few
: "${SAC_SEED:=0}"                           # decides every other seed
