#!/bin/sh
# The continuous trainer (v1): collection, agent, dynamics and rollouts all the time. Further options are passed on.
# NUM_ENVS, NUM_COLLECTORS, MAX_QUEUE_SIZE, COLLECTION_BATCH_SIZE, ENV and PYTHON may be set in the environment.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" "$here/train.py" --trainer continuous --env "${ENV:-Pendulum-v1}" --num_envs "${NUM_ENVS:-64}" \
    --num_collectors "${NUM_COLLECTORS:-4}" --max_queue_size "${MAX_QUEUE_SIZE:-1000}" \
    --collection_batch_size "${COLLECTION_BATCH_SIZE:-256}" "$@"
