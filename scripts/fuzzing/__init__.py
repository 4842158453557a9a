"""Mutated input for everything that reads untrusted data: media, records, presets, messages, checkpoints.

Atheris, Google's interface to LLVM's libFuzzer, mutates the seeds and is guided by the
lines that run. `target.py` describes a target: a function of bytes and its seeds. `harness.py` runs one target in a
process of its own, behind the checks of `guard.py`; `__main__.py` starts the harnesses. `corpus/` holds seeds that are
texts, and the tokens of formats.
"""
