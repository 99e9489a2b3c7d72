#!/bin/sh
# Whole-episode PPO without a step barrier. Further options are passed on.
# ENV, NUM_ENVS (or N_ENVS), TOTAL_EPISODES, EPISODES_PER_UPDATE, NUM_WORKERS and PYTHON may be set in the environment.
set -eu
NUM_ENVS=${NUM_ENVS:-${N_ENVS:-}}
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$here/../../.venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=python3
fi
exec "$PYTHON" "$here/train.py" --collector async ${ENV:+--env "$ENV"} ${NUM_ENVS:+--num_envs "$NUM_ENVS"} \
    ${TOTAL_EPISODES:+--total_episodes "$TOTAL_EPISODES"} ${EPISODES_PER_UPDATE:+--episodes_per_update "$EPISODES_PER_UPDATE"} \
    ${NUM_WORKERS:+--num_workers "$NUM_WORKERS"} "$@"
