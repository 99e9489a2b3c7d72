#!/bin/sh
# Make the environment FOLDER unless it works already. Python 3.11 is PYTHON if that is given, else one on the PATH, else uv's,
# which fetches it.
#     requirements/venv.sh FOLDER [PYTHON]
folder=$1 python=$2

refuse() {
    echo "error: $1" >&2
    exit 2
}

is_311() {
    "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
}

[ "$(uname -s)" = Linux ] || refuse "lzero-async runs on Linux only, but this is $(uname -s); use a Linux machine or a container."
"$folder/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
if [ -n "$python" ]; then
    is_311 "$python" || refuse "PYTHON is $python, which is not a Python 3.11; LightZero and the lock need that version."
else
    for each in python3.11 python3; do
        is_311 "$each" && python=$each && break
    done
fi
if [ -z "$python" ] && command -v uv >/dev/null; then
    uv python install 3.11 && python=$(uv python find 3.11)
fi
[ -n "$python" ] || refuse "Python 3.11 was not found; install it or uv, which fetches it, or name it: make PYTHON=/path/to/python3.11."
"$python" -m venv --clear "$folder"
