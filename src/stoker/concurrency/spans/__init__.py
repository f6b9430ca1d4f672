"""Spans: begin and end of each piece of a loader's work, recorded by all threads of all processes while a trace runs."""
