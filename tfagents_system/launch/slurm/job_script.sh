# shellcheck shell=bash
# The job script that sbatch gets: its #SBATCH lines and its command. Sourced by submit.sh.

job_script() { # SNAPSHOT
  echo "#!/usr/bin/env bash"
  if has_components; then
    component 1 --gpus-per-node=1
    echo "#SBATCH hetjob"
    component $((tfagents_nodes - 1))
  elif [[ ${SAC_TRAIN_GPUS:-0} == 1 ]] && ! asks_for_gpus; then
    component "$tfagents_nodes" --gpus-per-node=1
  else
    component "$tfagents_nodes"
  fi
  echo
  echo "exec bash $(quoted "$1/package/tfagents_system/launch/slurm/job.sh") $(quoted "$1")$(all_quoted ${tfagents_settings[@]+"${tfagents_settings[@]}"})"
}

component() { # NODES [OPTION]
  header --job-name="${SAC_EXP_NAME}"
  header --chdir="$PWD"
  header --output="${tfagents_submit_dir//%/%%}/slurm-%$([[ -n $tfagents_array ]] && echo 'A_%a' || echo j).out"
  header --open-mode=append
  header --nodes="$1"
  header --ntasks-per-node=1
  header --cpus-per-task="$(asked_cpus)"
  if ((tfagents_nodes > 1)); then header --no-kill; fi
  if (($# > 1)); then header "${@:2}"; fi
  if ! asks_for_memory; then header --mem="$(asked_memory_mb)M"; fi
  header --signal="B:USR1@$(signal_secs)"
  if ! has_option --no-requeue; then header --requeue; fi
  if ((${#tfagents_lasting[@]})); then header "${tfagents_lasting[@]}"; fi
}

header() { # WORD...
  local word line='#SBATCH'
  for word; do
    word=${word//\\/\\\\}
    word=${word//\"/\\\"}
    if [[ $word == *[[:space:]\'\"\\#]* ]]; then word=\"$word\"; fi
    line+=" $word"
  done
  echo "$line"
}
