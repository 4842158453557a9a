"""Distributions: complete, typed, usable outside the tree, with declared requirements and without network access."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import arr_stream
from arr_stream.errors import BackendUnavailable
from tests.media import moving_frames, write_video

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from package import Built, build, copy_tree, sdist_faults, tree_files, wheel_faults  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

UNINSTALLED = {
    "fast_slic": "fast-slic",
    "adlfs": "adlfs",
    "gcsfs": "gcsfs",
    "lmms_eval": "lmms-eval",
    "qwen_vl_utils": "qwen-vl-utils",
}
"""Packages that the tests run without: what they are called where they are got from."""

NAMED_ALONE = {"adlfs", "gcsfs", "lmms-eval"}
"""Clients of single stores, and a plugin's host: an error names them with their `pip install`, no extra holds them."""

_PROCESS = ("process", "clip.mp4", "--patches", "no.jsonl", "--set")
NEEDS = (
    ("torch", "torch", (*_PROCESS, "keyframes.embeddings=clip")),
    ("torch", "torch", (*_PROCESS, "loop.device=cuda")),
    ("vlm", "transformers", ("ask", "clip.mp4", "What?")),
    ("torch", "torch", ("tune", "clip.mp4", "-o", "no.toml")),
    ("vlm", "openai", ("ask", "clip.mp4", "What?", "--model", "M", "--endpoint", "http://127.0.0.1:9/v1")),
    ("clip", "open_clip", (*_PROCESS, "keyframes.embeddings=clip", "--set", "clip.model=ViT-B-32:random")),
    ("clip", "huggingface_hub", ("models", "fetch", "ViT-B-32:openai", "--folder", "models")),
    ("sam", "segment_anything", (*_PROCESS, "keyframes.clusters=sam", "--set", "sam.checkpoint=clip.mp4")),
    ("easyocr", "easyocr", (*_PROCESS, "keyframes.text=easyocr")),
    ("ray", "ray", ("batch", "clip.mp4", "-o", "no", "--engine", "ray")),
    ("remote", "s3fs", ("batch", "s3://bucket/clip.mp4", "-o", "no")),
    ("remote", "aiohttp", ("batch", "http://127.0.0.1:9/clip.mp4", "-o", "no")),
)
"""Extra, a package of it, and a command that needs it."""

OF_TORCH = {"triton"}
"""What torch brings along where it has a use for it, and is asked about before it is used."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    work = tmp_path_factory.mktemp("build")
    return build(ROOT, work / "dist", work)


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip lays it out, in a folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(folder)
    return folder


def _python(arguments: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """This interpreter in another folder."""
    command = [sys.executable, "-P", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_both_distributions_are_whole_and_hold_nothing_else(built: Built) -> None:
    assert wheel_faults(built.wheel, built.tree) == []
    assert sdist_faults(built.sdist, built.tree) == []
    assert built.wheel.name.startswith(f"arr_stream-{arr_stream.__version__}-py3-none-any")
    assert built.sdist.name == f"arr_stream-{arr_stream.__version__}.tar.gz"
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    assert "arr_stream/py.typed" in names
    assert not [name for name in names if re.search(r"tests|sample_videos|docs|scripts", name.partition("/")[0])]
    with tarfile.open(built.sdist) as archive:
        assert any(name.endswith("/tests/test_packaging.py") for name in archive.getnames())


def test_presets_work_by_bare_name_from_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path\n"
        "import arr_stream; from arr_stream.config import PRESETS, Settings\n"
        "found = {name: Settings.load(Path(name)) != Settings() for name in sys.argv[1:]}\n"
        "print(json.dumps([arr_stream.__file__, str(PRESETS), found]))"
    )
    names = sorted(path.stem for path in (ROOT / "pipelines").glob("*.toml"))
    ended = _python(["-c", code, *names], tmp_path, PYTHONPATH=str(unpacked))
    assert ended.returncode == 0, ended.stderr
    module, presets, found = json.loads(ended.stdout)
    assert Path(module).is_relative_to(unpacked)
    assert Path(presets) == unpacked / "arr_stream" / "presets"
    assert found == dict.fromkeys(names, True)


def test_what_is_built_from_is_what_a_checkout_has(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout")
    asked = ["git", "ls-files", "--cached", "--deduplicate"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    tracked = {name for name in listed if (ROOT / name).exists() and not name.startswith(".")}
    assert tracked <= tree_files(copy_tree(ROOT, tmp_path / "copy"))


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert re.search(rf"^## \[?{re.escape(arr_stream.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


@pytest.mark.parametrize("name", arr_stream.__all__)
def test_public_names_are_there_and_explained(name: str) -> None:
    value = getattr(arr_stream, name)
    if name != "__version__":
        assert value.__doc__
        assert value.__doc__.strip()
        assert getattr(importlib.import_module(value.__module__), value.__name__) is value


def test_every_imported_package_is_declared() -> None:
    texts = itertools.chain(PROJECT["dependencies"], *EXTRAS.values())
    declared = {canonicalize_name(Requirement(text).name) for text in texts} | NAMED_ALONE | OF_TORCH
    distributions = packages_distributions()
    undeclared = {}
    for path in sorted((ROOT / "arr_stream").rglob("*.py")):
        for package in _imported(path):
            names = distributions.get(package) or [UNINSTALLED.get(package, package)]
            if not declared & {canonicalize_name(name) for name in names}:
                undeclared[package] = str(path)
    assert not undeclared


def _imported(path: Path) -> set[str]:
    """Top names of the packages of others that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"arr_stream"}


def test_extras_that_are_spoken_of_exist() -> None:
    spoken = [*(ROOT / "arr_stream").rglob("*.py"), *PAGES]
    for path in spoken:
        for named in re.findall(r"arr-stream\[([a-z0-9_,-]+)\]", path.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(EXTRAS), f"{path}: [{named}]"


def test_everything_is_in_all_but_what_says_why_not() -> None:
    (together,) = EXTRAS["all"]
    assert Requirement(together).extras == set(EXTRAS) - {"all", "dev", "slic", "ray", "lmms-eval", "vllm"}


@pytest.mark.parametrize("page", [path for path in PAGES if path.parent == ROOT], ids=lambda path: path.name)
def test_links_of_the_pages_beside_the_readme_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]


def test_a_run_speaks_to_nobody(tmp_path: Path) -> None:
    """Python's sockets are watched; what onnxruntime would report by, sockets of its own, shows by its identifier."""
    code = (
        "import json, sys\nheard = []\n"
        "def watch(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.gethostbyname',\n"
        "                 'socket.sendto', 'urllib.Request', 'http.client.connect'):\n"
        "        heard.append([event, repr(arguments)])\n"
        "sys.addaudithook(watch)\n"
        "from arr_stream.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    code = ended.code or 0\nelse:\n    code = 0\n"
        "print(json.dumps([code, heard, 'onnxruntime' in sys.modules]))"
    )
    write_video(tmp_path / "clip.mp4", moving_frames(3))
    outputs = ["-o", "out.mp4", "--patches", "out.jsonl", "--report", "report", "--log=quiet"]
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    asked = ["--query", "red", "--set", "keyframes.delay=0"]
    ended = _python(["-c", code, "process", "clip.mp4", *asked, *outputs], tmp_path, **home)
    assert json.loads(ended.stdout.splitlines()[-1]) == [0, [], True], ended.stderr
    assert (tmp_path / "out.mp4").exists()
    assert not [path for path in tmp_path.rglob("*") if "microsoft" in path.name.lower()]


def _without(packages: Sequence[str], arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line where some packages cannot be imported."""
    code = f"import sys; sys.modules.update(dict.fromkeys({list(packages)!r})); from arr_stream.cli import main; main()"
    return _python(["-c", code, *arguments], folder)


def _needs() -> Iterator[object]:
    for extra, package, arguments in NEEDS:
        # The others import more before they see what is missing.
        marks = () if package == "s3fs" else (pytest.mark.slow,)
        yield pytest.param(extra, package, arguments, marks=marks, id=f"{package}-{arguments[0]}")


@pytest.mark.parametrize(("extra", "package", "arguments"), list(_needs()))
def test_what_lacks_an_extra_names_it(extra: str, package: str, arguments: Sequence[str], tmp_path: Path) -> None:
    write_video(tmp_path / "clip.mp4", moving_frames(2))
    ended = _without([package], arguments, tmp_path)
    assert ended.returncode == BackendUnavailable.exit_code, ended.stderr
    assert f"pip install 'arr-stream[{extra}]'" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_runs_and_is_typed_without_the_tree(unpacked: Path, tmp_path: Path) -> None:
    write_video(tmp_path / "clip.mp4", moving_frames(10))
    arguments = ["process", "clip.mp4", "--query", "red", "--preset", "realtime", "-o", "out.mp4"]
    ended = _python(["-m", "arr_stream", *arguments], tmp_path, PYTHONPATH=str(unpacked))
    assert ended.returncode == 0, ended.stderr
    # Outside the tree, since mypy would read the package beside the program.
    program = Path(shutil.copy(Path(__file__).with_name("api_program.py"), tmp_path))
    ended = _python([str(program), "clip.mp4"], tmp_path, PYTHONPATH=str(unpacked))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{arr_stream.__version__}: 10 frames, ")
    assert _typed_at(unpacked, program, tmp_path) == ""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import arr_stream\n\nfor patches in arr_stream.open('a.mp4', budgett=3):\n    patches.cells.x\n")
    said = _typed_at(unpacked, wrong, tmp_path)
    assert 'Unexpected keyword argument "budgett"' in said
    assert '"PatchSet" has no attribute "cells"' in said


def _typed_at(installed: Path, program: Path, folder: Path) -> str:
    """What mypy says of a program against a package in a folder; nothing where all is well."""
    command = ["-m", "mypy", "--strict", "--config-file=", "--no-error-summary", str(program)]
    environment = os.environ | {"MYPYPATH": "", "MYPY_CACHE_DIR": str(folder / "cache")}
    # As installed, with its own py.typed: mypy takes what lies on the path of the interpreter that it is told of.
    launcher = folder / "python"
    launcher.write_text(f'#!/bin/sh\nPYTHONPATH={installed} exec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    command += ["--python-executable", str(launcher)]
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr
