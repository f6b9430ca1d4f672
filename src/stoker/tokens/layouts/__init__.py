"""Layouts: from documents to rows of tokens."""
