"""Results of a run: recorded, summarised, judged."""
