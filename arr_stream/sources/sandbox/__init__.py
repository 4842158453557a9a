"""Decoding of files of unknown origin in a process that has nothing but the file; see docs/trust.md.

`source` is what the user sees, `decoder` the parent's end of the process, `messages` what they say to each other;
`child` is the process itself, and `lockdown` what it gives up before it sees a byte of the file.
"""
