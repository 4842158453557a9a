"""Full generation on keyframes: clusters, embedding and text, in step or in a worker process."""
