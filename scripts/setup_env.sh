# Sourced by the other scripts: an environment in .venv with everything installed, made once and kept up to date.
# Sets PYTHON to its interpreter. ARR_STREAM_VENV names another place for the environment.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV="${ARR_STREAM_VENV:-.venv}"
PYTHON="$VENV/bin/python"
STAMP="$VENV/.installed"

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "setup: Python 3.11 or newer is needed, and none was found on PATH" >&2
    return 1
}

install() {
    local wanted base
    wanted="$(cat pyproject.toml constraints.txt | cksum)"
    if [ -x "$PYTHON" ] && [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$wanted" ]; then
        return
    fi
    base="$(find_python)"
    echo "setup: installing into $VENV (several GB, a few minutes the first time)" >&2
    [ -x "$PYTHON" ] || "$base" -m venv "$VENV"
    # What pip has to say is of interest only when it fails.
    if ! "$PYTHON" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,all]' \
        >"$VENV/pip.log" 2>&1; then
        tail -n 20 "$VENV/pip.log" >&2
        echo "setup: installation failed; the whole output is in $VENV/pip.log" >&2
        return 1
    fi
    echo "$wanted" >"$STAMP"
}

install
