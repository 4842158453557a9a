"""Full generation on keyframes: clusters, embedding, text and objects, in step or in a worker process."""
