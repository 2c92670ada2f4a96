#!/usr/bin/env bash
# One run on a Slurm cluster: completions and examinations by arrays of tasks, everything else by one. Set the places marked SET, and
# call it on the login node: ./run.sh. All nodes must see store, models, prompts and this file at the same paths.
set -euo pipefail

config=${CONFIG:-/srv/understudy/config.yaml}  # SET
store=${STORE:-/srv/understudy/store}          # SET: on a file system with locks (Lustre: -o flock)
run=${RUN:-$(date -u +%Y%m%d-%H%M%S)}
tasks=${TASKS:-16}                             # SET: shares; more than nodes, so that a node that is done takes another
resources=(--gres=gpu:1 --cpus-per-task=8 --mem=64G)  # SET: of each task
training=("${resources[@]}")                   # SET: on four GPUs (--nodes=2 --ntasks-per-node=2 --gres=gpu:2 --cpus-per-task=8 --mem=128G)

script=$(readlink -f "$0")
export CONFIG=$config STORE=$store RUN=$run TASKS=$tasks

# submit NAME DEPENDENCY WORDS...: this script with WORDS, as one job or, for a share, as an array. Prints the job's id.
submit() {
  local options=(--job-name="understudy-$1")
  if [[ $3 == draft ]]; then options+=("${training[@]}"); else options+=("${resources[@]}"); fi
  if [[ -n $2 ]]; then options+=(--dependency="$2" --kill-on-invalid-dep=yes); fi
  if [[ $3 == share ]]; then options+=(--array="1-$tasks" --requeue); fi
  sbatch --parsable "${options[@]}" "$script" "${@:3}"
}

case ${1:-submit} in
  submit)
    # A share that fails leaves its shards to the job behind it. Where another job fails, nothing else begins or stays in the queue.
    corpus=$(submit corpus "" stages pair corpus)
    completions=$(submit completions "afterok:$corpus" share generate)
    draft=$(submit draft "afterok:$corpus,afterany:$completions" draft)
    examinations=$(submit examinations "afterok:$draft" share evaluate)
    rest=$(submit rest "afterok:$draft,afterany:$examinations" rest)
    echo "run $run: jobs $corpus, $completions, $draft, $examinations, $rest"
    ;;
  stages)
    for stage in "${@:2}"; do
      understudy stage "$stage" "$config" --run "$run" --store "$store"
    done
    ;;
  draft)
    understudy stage generate "$config" --run "$run" --store "$store"
    export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # which srun no longer takes over by itself, since 22.05
    srun --kill-on-bad-exit understudy stage distill "$config" --run "$run" --store "$store"
    understudy stage quantize "$config" --run "$run" --store "$store"
    ;;
  share)
    understudy stage "$2" "$config" --run "$run" --store "$store" --shards "$SLURM_ARRAY_TASK_ID/$tasks"
    ;;
  rest)
    understudy run "$config" --run "$run" --store "$store"
    ;;
  *)
    echo "usage: $0 [submit]" >&2
    exit 2
    ;;
esac
