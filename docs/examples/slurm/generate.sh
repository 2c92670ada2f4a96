#!/usr/bin/env bash
# One run on a Slurm cluster: completions by an array of tasks, everything else by one. Set the places marked SET, and call it on the
# login node: ./generate.sh. All nodes must see store, models, prompts and this file at the same paths.
set -euo pipefail

config=${CONFIG:-/srv/understudy/config.yaml}  # SET
store=${STORE:-/srv/understudy/store}          # SET: on a file system with locks (Lustre: -o flock)
run=${RUN:-$(date -u +%Y%m%d-%H%M%S)}
tasks=${TASKS:-16}                             # SET: shares; more than nodes, so that a node that is done takes another
resources=(--gres=gpu:1 --cpus-per-task=8 --mem=64G)  # SET: of each task

script=$(readlink -f "$0")
export CONFIG=$config STORE=$store RUN=$run TASKS=$tasks

case ${1:-submit} in
  submit)
    before=$(sbatch --parsable "${resources[@]}" --job-name=understudy-before "$script" before)
    # A task that fails twice leaves its shards to `after`.
    share=$(sbatch --parsable "${resources[@]}" --job-name=understudy-share --array="1-$tasks" --requeue \
      --dependency="afterok:$before" "$script" share)
    after=$(sbatch --parsable "${resources[@]}" --job-name=understudy-after --dependency="afterany:$share" "$script" after)
    echo "run $run: jobs $before, $share, $after"
    ;;
  before)
    for stage in pair corpus; do
      understudy stage "$stage" "$config" --run "$run" --store "$store"
    done
    ;;
  share)
    understudy stage generate "$config" --run "$run" --store "$store" --shards "$SLURM_ARRAY_TASK_ID/$tasks"
    ;;
  after)
    understudy run "$config" --run "$run" --store "$store"
    ;;
  *)
    echo "usage: $0 [submit]" >&2
    exit 2
    ;;
esac
