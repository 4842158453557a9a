"""The scenes of `sample_videos`: layered drawings over photographs, whose motion is known exactly."""
