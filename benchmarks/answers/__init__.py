"""What a choice of cells is worth in right answers, by a model that knows what it is asked about."""
