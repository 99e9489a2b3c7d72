#!/bin/sh
# The batch trainer (v2): steps of all environments into a small queue, processed batch by batch. Further options are passed on.
# NUM_ENVS, NUM_STEPS_PER_ENV, BATCH_QUEUE_SIZE, ENV and PYTHON may be set in the environment.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" "$here/train.py" --trainer batch --env "${ENV:-Pendulum-v1}" --num_envs "${NUM_ENVS:-64}" \
    --num_steps_per_env "${NUM_STEPS_PER_ENV:-24}" --batch_queue_size "${BATCH_QUEUE_SIZE:-10}" "$@"
