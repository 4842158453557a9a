"""From records back to what they were made of and with: the video drawn again, and the run done again.

redraw     the annotated video from source and records, without the pipeline
rerun      the same run once more, and whether it gives the same records
"""
