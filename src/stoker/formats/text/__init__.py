"""CSV, XSV, JSON and JSON lines."""
