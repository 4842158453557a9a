"""Everything that measures the product beside others; it imports the product, never the reverse."""
