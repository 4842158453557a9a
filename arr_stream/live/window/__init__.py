"""The window of `webcam` and `stream`: opened with Tk, drawn on, and worked by keys and the pointer."""
