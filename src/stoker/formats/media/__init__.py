"""Video and audio: lazy handles, decoded by clip, and the formats whose files are one of them each."""
