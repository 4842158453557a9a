"""The window of `webcam` and `stream`: opened with Tk, controlled by keys and the pointer."""
