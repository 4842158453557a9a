"""The page's files: small, complete, and without anything that its content policy forbids."""

import re
from pathlib import Path

import arr_stream

STATIC = Path(arr_stream.__file__).parent / "web" / "static"
UNSAFE = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\("
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
HTML = (STATIC / "index.html").read_text("utf-8")


def test_all_files_together_are_below_200_kb():
    assert 0 < sum(path.stat().st_size for path in FILES) < 200_000


def test_no_address_outside_the_machine():
    for path in FILES:
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", path.read_text("utf-8")))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path


def test_no_inline_script_or_style():
    assert not re.search(r"<script(?![^>]*\bsrc=)", HTML)
    assert not re.search(r"<style|\sstyle=|\son\w+=", HTML)
    for path in FILES:
        if path.suffix == ".js":
            assert not re.search(UNSAFE, path.read_text("utf-8")), path


def test_everything_that_the_page_names_is_there():
    named = {name.removeprefix("static/") for name in re.findall(r'(?:href|src)="(static/[^"]+)"', HTML)}
    assert named and all((STATIC / name).is_file() for name in named)


def test_every_module_is_preloaded_and_every_import_is_there():
    modules = {path.name for path in (STATIC / "js").glob("*.js")}
    preloaded = set(re.findall(r'modulepreload" href="static/js/([^"]+)"', HTML))
    assert preloaded == modules - {"main.js", "theme.js"}
    for path in (STATIC / "js").glob("*.js"):
        assert set(re.findall(r'from "\./([^"]+)"', path.read_text("utf-8"))) <= modules, path


def test_every_icon_is_in_the_sprite():
    symbols = set(re.findall(r'<symbol id="i-([\w-]+)"', HTML))
    scripts = "".join(path.read_text("utf-8") for path in (STATIC / "js").glob("*.js"))
    used = set(re.findall(r'href="#i-([\w-]+)"', HTML)) | set(re.findall(r'icon\("([\w-]+)"\)', scripts))
    assert used <= symbols
