#!/bin/sh
# The continuous trainer (v1): collection, agent, dynamics and rollouts all the time. Further options are passed on.
# ENV, NUM_ENVS, NUM_COLLECTORS, MAX_QUEUE_SIZE, COLLECTION_BATCH_SIZE and PYTHON may be set in the environment.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$here/../../.venv/bin/python
    [ -x "$PYTHON" ] || PYTHON=python3
fi
exec "$PYTHON" "$here/train.py" --trainer continuous ${ENV:+--env "$ENV"} ${NUM_ENVS:+--num_envs "$NUM_ENVS"} \
    ${NUM_COLLECTORS:+--num_collectors "$NUM_COLLECTORS"} ${MAX_QUEUE_SIZE:+--max_queue_size "$MAX_QUEUE_SIZE"} \
    ${COLLECTION_BATCH_SIZE:+--collection_batch_size "$COLLECTION_BATCH_SIZE"} "$@"
