"""What is remembered between frames."""
