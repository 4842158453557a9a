"""Streams that do not wait: commands while they run, quality that follows the load, pictures and events for viewers."""
