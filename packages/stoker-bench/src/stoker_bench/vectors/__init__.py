"""The stage ``vectors``: how fast vectors near others are found in an index that is in storage."""
