#!/bin/sh
# The batch trainer (v2): steps of all environments into a small queue, processed batch by batch. Further options are passed on.
# ENV, NUM_ENVS, NUM_STEPS_PER_ENV, BATCH_QUEUE_SIZE and PYTHON may be set in the environment.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$here/../../.venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=python3
fi
exec "$PYTHON" "$here/train.py" --trainer batch ${ENV:+--env "$ENV"} ${NUM_ENVS:+--num_envs "$NUM_ENVS"} \
    ${NUM_STEPS_PER_ENV:+--num_steps_per_env "$NUM_STEPS_PER_ENV"} \
    ${BATCH_QUEUE_SIZE:+--batch_queue_size "$BATCH_QUEUE_SIZE"} "$@"
