"""The results page: commands are run, what they print is kept as JSON, and the page is written from what is kept."""
