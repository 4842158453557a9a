"""The page, the interface for programs, and the server of both; see docs/api.md."""
