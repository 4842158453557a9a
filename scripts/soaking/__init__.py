"""A long run of the server and of batches under faults, judged by what grows and by what is left behind."""
