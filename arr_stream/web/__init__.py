"""Web page, HTTP interface for programs, and their server; see docs/api.md."""
