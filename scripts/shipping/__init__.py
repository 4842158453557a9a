"""What `scripts/package` does: builds what is published, looks into it, and tries it apart from this tree."""
