# shellcheck shell=bash
# Whether this is the login node of a SLURM cluster, where nobody should train. Sourced by a launcher with `fail`.

# A `sbatch` alone proves nothing: SLURM's packages may be installed where there is no cluster.
is_login_node() {
  [[ -z ${SLURM_JOB_ID:-} ]] && command -v sbatch >/dev/null && command -v scontrol >/dev/null \
    && [[ $(timeout 5 scontrol ping 2>/dev/null) == *" is UP"* ]]
}

refuse_login_node() {
  if [[ ${SAC_ALLOW_LOGIN:-0} == 1 ]] || ! is_login_node; then return 0; fi
  fail "this machine submits to a SLURM cluster, and this is no job: submit the run (./submit.sh $tfagents_vars)," \
    "or set SAC_ALLOW_LOGIN=1 to train right here"
}
