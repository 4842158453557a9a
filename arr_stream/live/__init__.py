"""Live streams: commands while they run, quality that adapts to the load, pictures and events for clients."""
