"""Results of a run: records, summary, rules that a valid run keeps."""
