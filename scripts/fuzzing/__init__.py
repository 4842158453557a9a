"""Mutated input for everything that reads what others wrote: media, records, presets, messages, checkpoints.

Read `target.py` first: a target is a function of bytes, its seeds, and what may come of it; `targets.py` names all.
`campaign.py` makes inputs from the seeds and keeps those that show something new. `child.py` tries them in a process of
its own, behind the guards of `guard.py`, so that a crash, a hang, a file written elsewhere or a connection is seen;
`runner.py` is its parent's end. `corpus/` holds seeds that are texts, and the tokens of formats.
"""
